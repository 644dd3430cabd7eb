"""An inference server that behaves as told. It imports nothing of relayq's, so that it cannot share its mistakes.

`POST /v1/audio/transcriptions`, `/v1/audio/translations`, `/v1/embeddings`, `/v1/chat/completions` answer in OpenAI's
shapes; `POST /echo` reports what was uploaded. `mock_…` fields, JSON members or query parameters change the answer
(`mock_inference.behaviour`). `GET /health` is 503 until ready. `GET /journal` lists what was asked (`?after=ID`: since
then), `DELETE /journal` clears it.
"""
