"""Reads keys, one a line in hex, and prints of each: bucket, then its partition of 8, 16, 64 and 128, and of a topic
with 3, 7, 12, 100 and 255.

Written from the description of MurmurHash2 and of Kafka's use of it, apart from the Go code.
"""

import sys

M = 0x5BD1E995
MASK = 0xFFFFFFFF


def murmur2(data):
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * M & MASK
        k = (k ^ k >> 24) * M & MASK
        h = h * M & MASK ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & MASK
    h = (h ^ h >> 13) * M & MASK
    return h ^ h >> 15


for line in sys.stdin:
    key = murmur2(bytes.fromhex(line.strip())) & 0x7FFFFFFF
    bucket = key % 4096
    print(bucket, *(bucket % n for n in (8, 16, 64, 128)), *(key % n for n in (3, 7, 12, 100, 255)))
