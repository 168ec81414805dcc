"""The paper's mathematics: knows no tokenizer, file or clock."""
