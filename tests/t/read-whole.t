#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Reads ask for one piece where holes are known anyway. A server may refuse
# that for what is large; then it answers as it likes.

# shellcheck disable=SC2034,SC2119,SC2153 source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"
requires copy python3

cd "$T" || exit 1
head -c 1M /dev/urandom >image

# Structured replies only; a read that must not be cut fails when it is longer
# than the protocol guarantees; others come in two pieces, the second one first.
cat >server <<'END'
import os, socket, struct, sys, threading

data = open("image", "rb").read()
log = open("reads", "a", buffering=1)

def take(s, n):
    b = b""
    while len(b) < n:
        more = s.recv(n - len(b))
        if not more:
            sys.exit()
        b += more
    return b

def reply(s, opt, kind, payload=b""):
    s.sendall(struct.pack(">QIII", 0x3e889045565a9, opt, kind,
                          len(payload)) + payload)

def chunk(s, cookie, flags, kind, payload):
    s.sendall(struct.pack(">IHHQI", 0x668e33ef, flags, kind, cookie,
                          len(payload)) + payload)

def options(s):
    s.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 1))
    take(s, 4)
    while True:
        opt, n = struct.unpack(">8xII", take(s, 16))
        arg = take(s, n)
        if opt == 8:
            reply(s, opt, 1)
        elif opt == 10:
            reply(s, opt, 4, struct.pack(">I", 7) + b"base:allocation")
            reply(s, opt, 1)
        elif opt in (6, 7):
            # has flags, read only, DF
            reply(s, opt, 3, struct.pack(">HQH", 0, len(data), 0x83))
            reply(s, opt, 1)
            if opt == 7:
                return
        elif opt == 3:
            reply(s, opt, 2, struct.pack(">I", 0))
            reply(s, opt, 1)
        elif opt == 2:
            reply(s, opt, 1)
            sys.exit()
        else:
            reply(s, opt, 0x80000001)

def read(s, flags, cookie, offset, n):
    log.write("%d %d\n" % (n, flags))
    if flags & 4:
        if n > 65536:
            chunk(s, cookie, 1, 0x8001, struct.pack(">IH", 75, 0))
        else:
            chunk(s, cookie, 1, 1, struct.pack(">Q", offset) +
                  data[offset:offset + n])
        return
    half = n // 2
    chunk(s, cookie, 0, 1, struct.pack(">Q", offset + half) +
          data[offset + half:offset + n])
    if half:
        chunk(s, cookie, 0, 1, struct.pack(">Q", offset) +
              data[offset:offset + half])
    chunk(s, cookie, 1, 0, b"")

def serve(s):
    options(s)
    while True:
        flags, kind, cookie, offset, n = struct.unpack(">4xHHQQI",
                                                       take(s, 28))
        if kind == 0:
            read(s, flags, cookie, offset, n)
        elif kind == 7:
            chunk(s, cookie, 1, 5, struct.pack(">III", 7, n, 0))
        else:
            sys.exit()

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(8)
print("ready", flush=True)
while True:
    connection = listener.accept()[0]
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
END

_next_server python
spawn "$SERVER_LOG" python3 server "$SOCK"
SERVER_PID=$SPAWNED
wait_until 15 grep -q ready "$SERVER_LOG" || bail "the server did not start"

run_ok -n "a server that cannot send much in one piece" \
	"$NBDFS_COPY" --request-size=64K "$URI" got
ok "cmp image got" "the bytes are right"
is "$(sort reads | uniq -c | xargs)" "16 65536 4" \
	"what it must send in one piece is asked for so"
: >reads
run_ok "$NBDFS_COPY" --request-size=256K "$URI" got
ok "cmp image got" "larger pieces, too"
is "$(awk '$2 == 0 { n += $1 } END { print n }' reads)" 1048576 \
	"are asked for again, as it likes"
is "$(awk '$2 == 4' reads | wc -l | awk '{ print $1 <= 4 }')" 1 \
	"and it is remembered" || sed 's/^/# /' reads

done_testing
