"""Is the sampler lossless? Tests through the real code path, and wrong samplers that must fail them."""
