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
	// mostStdout and mostStderr, in bytes, bound what a host can make us keep.
	mostStdout = 256 << 10
	mostStderr = 16 << 10
	// mostSaid bounds, in bytes and lines, what of it gets into a message.
	mostSaid  = 1 << 10
	mostLines = 10
	// leastWord is how long a word of a secret is that is looked for by itself: shorter ones
	// are words of everybody.
	leastWord = 12
)

// head keeps the first bytes.
type head struct {
	mu   sync.Mutex
	kept []byte
	lost bool
}

// Write takes all, and keeps what there is room for.
func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	room := min(len(p), mostStdout-len(h.kept))
	h.kept = append(h.kept, p[:room]...)
	h.lost = h.lost || room < len(p)

	return len(p), nil
}

func (h *head) text() (text string, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	return string(h.kept), h.lost
}

// tail keeps the last bytes.
type tail struct {
	mu   sync.Mutex
	kept []byte
	lost bool
}

// Write takes all, and keeps the last.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.kept = append(t.kept, p...)
	if over := len(t.kept) - mostStderr; over > 0 {
		t.kept = slices.Clone(t.kept[over:])
		t.lost = true
	}

	return len(p), nil
}

// text gives whole lines alone: a secret that was cut in two would not be found.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()

	if !t.lost {
		return string(t.kept)
	}

	_, rest, _ := strings.Cut(string(t.kept), "\n")

	return rest
}

// last gives the last lines of a text, in one line.
func last(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[max(0, len(lines)-mostLines):]
	said := strings.ToValidUTF8(strings.Join(lines, "; "), "?")

	if said == "" {
		return "it said nothing"
	}

	if over := len(said) - mostSaid; over > 0 {
		said = "..." + strings.ToValidUTF8(said[over:], "")
	}

	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}

		return r
	}, said)
}

// redact takes secrets out of a text: each as a whole, each of their lines, and their long
// words, as programs quote what they could not read in parts.
func redact(text string, secrets ...log.Secret) string {
	var hidden []string

	for _, secret := range secrets {
		whole := strings.TrimSpace(secret.Reveal())
		hidden = append(hidden, whole)

		for line := range strings.Lines(whole) {
			line = strings.TrimSpace(line)
			for _, piece := range append(strings.Fields(line), line) {
				if len(piece) >= leastWord {
					hidden = append(hidden, piece)
				}
			}
		}
	}

	// The longest first, so that none is hidden in part.
	slices.SortFunc(hidden, func(a, b string) int { return len(b) - len(a) })

	for _, secret := range slices.Compact(hidden) {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, log.Redacted)
		}
	}

	return text
}
