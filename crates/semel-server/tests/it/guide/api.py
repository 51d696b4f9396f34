"""An API without idempotency: every POST makes another thing."""
import http.server, itertools, json, sys

things = itertools.count(1)

class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/lost":  # It happened, and nobody hears of it.
            self.close_connection = True
            return
        body = json.dumps({"id": f"ch_{next(things)}"}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

host, port = sys.argv[1].split(":")
server = http.server.ThreadingHTTPServer((host, int(port)), Api)
print("listening", flush=True)
server.serve_forever()
