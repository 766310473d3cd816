"""OpenAI's shapes: bodies of requests into requests, results into bodies, and files of many of both."""
