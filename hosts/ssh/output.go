// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

const (
	// maxStdout and maxStderr limit how many bytes of a host's output are kept.
	maxStdout = 256 << 10
	// maxGreeting is how many bytes are kept of what the user's shell prints before a script.
	maxGreeting = 4 << 10
	maxStderr   = 16 << 10
	// maxMessage and maxLines limit, in bytes and lines, how much of the output gets into a
	// message.
	maxMessage = 1 << 10
	maxLines   = 10
	// minSecretWord is the minimum length of a line or word of a secret that is redacted by itself.
	// Shorter ones are too common.
	minSecretWord = 12
)

// headBuffer keeps the first bytes that are written to it.
type headBuffer struct {
	mu        sync.Mutex
	data      []byte
	truncated bool
}

// Write keeps the bytes until maxGreeting and maxStdout are reached. It never fails.
func (h *headBuffer) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	free := min(len(p), maxGreeting+maxStdout-len(h.data))
	h.data = append(h.data, p[:free]...)
	h.truncated = h.truncated || free < len(p)

	return len(p), nil
}

func (h *headBuffer) text() (text string, truncated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	return string(h.data), h.truncated
}

// tailBuffer keeps the last bytes that are written to it.
type tailBuffer struct {
	mu        sync.Mutex
	data      []byte
	truncated bool
}

// Write keeps the last maxStderr bytes. It never fails.
func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.data = append(t.data, p...)
	if excess := len(t.data) - maxStderr; excess > 0 {
		t.data = slices.Clone(t.data[excess:])
		t.truncated = true
	}

	return len(p), nil
}

// text returns whole lines only, because redact would not find a secret that was cut.
func (t *tailBuffer) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()

	if !t.truncated {
		return string(t.data)
	}

	_, rest, _ := strings.Cut(string(t.data), "\n")

	return rest
}

// lastLines returns the last lines of a text as one line, without control characters.
func lastLines(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[max(0, len(lines)-maxLines):]
	message := strings.ToValidUTF8(strings.Join(lines, "; "), "?")

	if message == "" {
		return "no output"
	}

	if excess := len(message) - maxMessage; excess > 0 {
		message = "..." + strings.ToValidUTF8(message[excess:], "")
	}

	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}

		return r
	}, message)
}

// redact replaces secrets in a text. It replaces each secret as a whole, and also its lines and words from
// minSecretWord bytes on, because programs quote parts of an input that they can't parse.
func redact(text string, secrets ...log.Secret) string {
	var toRedact []string

	for _, secret := range secrets {
		trimmed := strings.TrimSpace(secret.Reveal())
		toRedact = append(toRedact, trimmed)

		for line := range strings.Lines(trimmed) {
			line = strings.TrimSpace(line)
			for _, word := range append(strings.Fields(line), line) {
				if len(word) >= minSecretWord {
					toRedact = append(toRedact, word)
				}
			}
		}
	}

	// The longest secrets come first, so that no secret is replaced only in part.
	slices.SortFunc(toRedact, func(a, b string) int { return len(b) - len(a) })

	for _, secret := range slices.Compact(toRedact) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, log.Redacted)
		}
	}

	return text
}
