// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"crypto/sha256"
	"regexp"
	"slices"
	"strings"
)

// reCrypted matches a password that is encrypted already.
var reCrypted = regexp.MustCompile(`^\$(?:[156]|2[ay])(?:\$.+){2}`)

const cryptAlphabet = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// encryptPassword encrypts a password for a guest as crypt(3) does with the method $5$ (SHA-256).
func encryptPassword(password, salt string) string {
	const rounds = 5000
	key := []byte(password)
	sum := func(parts ...[]byte) []byte {
		out := sha256.Sum256(slices.Concat(parts...))
		return out[:]
	}
	stretch := func(digest []byte, length int) []byte {
		return bytes.Repeat(digest, length/sha256.Size+1)[:length]
	}
	alternate := sum(key, []byte(salt), key)
	first := slices.Concat(key, []byte(salt), stretch(alternate, len(key)))
	for n := len(key); n > 0; n >>= 1 {
		if n&1 != 0 {
			first = append(first, alternate...)
		} else {
			first = append(first, key...)
		}
	}
	digest := sum(first)
	keys := stretch(sum(bytes.Repeat(key, len(key))), len(key))
	salts := stretch(sum(bytes.Repeat([]byte(salt), 16+int(digest[0]))), len(salt)) //nolint:mnd // of the algorithm
	for round := range rounds {
		isOdd := round&1 != 0
		var input []byte
		input = append(input, pick(isOdd, keys, digest)...)
		input = append(input, pick(round%3 != 0, salts, nil)...)
		input = append(input, pick(round%7 != 0, keys, nil)...)
		digest = sum(input, pick(isOdd, digest, keys))
	}
	return "$5$" + salt + "$" + encodeDigest(digest)
}

func pick(condition bool, yes, no []byte) []byte {
	if condition {
		return yes
	}
	return no
}

// encodeDigest encodes a digest as crypt(3) does: in groups of three bytes from three thirds of the digest.
func encodeDigest(digest []byte) string {
	var b strings.Builder
	write := func(bits, chars int) {
		for range chars {
			b.WriteByte(cryptAlphabet[bits&0x3f])
			bits >>= 6
		}
	}
	x, y, z := 0, 10, 20 //nolint:mnd // of the algorithm
	for range 10 {
		write(int(digest[x])<<16|int(digest[y])<<8|int(digest[z]), 4) //nolint:mnd // 24 bits as 4 characters
		x, y, z = z+1, x+1, y+1
	}
	write(int(digest[31])<<8|int(digest[30]), 3) //nolint:mnd // the last two bytes
	return b.String()
}

// newSalt returns a random salt. The caller holds s.mu.
func (s *Server) newSalt() string {
	const length = 8
	out := make([]byte, length)
	for i := range out {
		out[i] = cryptAlphabet[s.rng.IntN(len(cryptAlphabet))]
	}
	return string(out)
}
