// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// light is what a host without processes keeps.
type light struct {
	mu  sync.Mutex
	got map[string]sent
}

// sent is what came last for a label.
type sent struct{ script, payload string }

const (
	callOfMain = "\nmain; exit 0\n"
	lightCheck = "/usr/bin/true"
)

var (
	sumLine   = regexp.MustCompile(`(?m)^SHA256='([0-9a-f]*)'$`)
	endLine   = regexp.MustCompile(`(?m)^END='(.*)'$`)
	probeBody = regexp.MustCompile(`(?s)probe_[a-z0-9_]+\(\) \{\n(.*?)\n\}\nprobe ([a-z0-9-]+)\n`)
	sumText   = regexp.MustCompile(`'([0-9a-f]{64})'`)
)

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))

	return hex.EncodeToString(sum[:])
}

// Digests gives, by label, the digest of each script that a light host took last, together
// with what the script read.
func (h *Host) Digests() map[string]string {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	out := map[string]string{}
	for label, s := range h.light.got {
		out[label] = digest(s.script + s.payload)
	}

	return out
}

// Payload is what the last script of a label read at a light host.
func (h *Host) Payload(label string) string {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	return h.light.got[label].payload
}

// Lose has a light host lose a part, so that its probe tells.
func (h *Host) Lose(label string) {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	delete(h.light.got, label)
}

// lightly takes a command as a host does, without running it.
func (h *Host) lightly(input io.Reader, channel ssh.Channel, line string) int {
	refuse := func(format string, args ...any) int {
		fmt.Fprintf(channel.Stderr(), format+"\n", args...)

		return 1
	}

	h.mu.Lock()
	sudo := h.faults.sudo
	h.mu.Unlock()

	switch asked := strings.HasPrefix(line, "sudo "); {
	case asked && sudo != SudoFree:
		return refuse("sudo: a password is required")
	case !asked && h.options.User != "root":
		return refuse("%s is not root", h.options.User)
	}

	label := labelOf(line)
	if label == "" {
		if strings.HasSuffix(line, " "+lightCheck) {
			return 0
		}

		h.note(line)

		return 127
	}

	text, err := io.ReadAll(input)
	if err != nil {
		return refuse("read: %v", err)
	}

	if strings.Contains(string(text), "\nprobe() {\n") {
		return h.probe(string(text), channel)
	}

	script, payload, whole := strings.Cut(string(text), callOfMain)
	if !whole {
		return refuse("the script was cut short")
	}

	if sum := sumLine.FindStringSubmatch(script); len(sum) > 1 && sum[1] != digest(payload) {
		return refuse("what arrived is not what was sent: push it again")
	}

	if end := endLine.FindStringSubmatch(script); len(end) > 1 && !strings.HasSuffix(payload, "\n"+end[1]+"\n") {
		return refuse("what arrived was cut short: push it again")
	}

	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	h.light.got[label] = sent{script: script, payload: payload}

	return 0
}

// probe says of each part whether it came, in the version that the probe wants where it
// names one.
func (h *Host) probe(script string, channel ssh.Channel) int {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	for _, found := range probeBody.FindAllStringSubmatch(script, -1) {
		s, ok := h.light.got[found[2]]

		state := "lost"
		if sum := sumText.FindStringSubmatch(found[1]); ok && (len(sum) < 2 || sum[1] == digest(s.payload)) {
			state = "intact"
		}

		fmt.Fprintf(channel, "%s %s\n", found[2], state)
	}

	return 0
}
