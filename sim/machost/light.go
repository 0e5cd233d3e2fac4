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

// lightState is the state of a light host.
type lightState struct {
	mu       sync.Mutex
	received map[string]pushedScript
}

// pushedScript is the last script that a light host has accepted for a label, with its input.
type pushedScript struct{ script, payload string }

const (
	mainCall     = "\nmain; exit 0\n"
	checkCommand = "/usr/bin/true"
)

var (
	digestLine = regexp.MustCompile(`(?m)^SHA256='([0-9a-f]*)'$`)
	endLine    = regexp.MustCompile(`(?m)^END='(.*)'$`)
	probeBody  = regexp.MustCompile(`(?s)probe_[a-z0-9_]+\(\) \{\n(.*?)\n\}\nprobe ([a-z0-9-]+)\n`)
	digestText = regexp.MustCompile(`'([0-9a-f]{64})'`)
)

func computeDigest(text string) string {
	sum := sha256.Sum256([]byte(text))

	return hex.EncodeToString(sum[:])
}

// Digests returns, by label, the digest of the last script that a light host has accepted together
// with the script's input.
func (h *Host) Digests() map[string]string {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	out := map[string]string{}
	for label, s := range h.light.received {
		out[label] = computeDigest(s.script + s.payload)
	}

	return out
}

// Payload returns the input of the last script with this label at a light host.
func (h *Host) Payload(label string) string {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	return h.light.received[label].payload
}

// DropScript makes a light host forget a script, so that the probe reports the part as lost.
func (h *Host) DropScript(label string) {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	delete(h.light.received, label)
}

// runLight accepts a command as a host does, but does not execute it. It returns the exit code.
func (h *Host) runLight(input io.Reader, channel ssh.Channel, line string) int {
	refuse := func(format string, args ...any) int {
		fmt.Fprintf(channel.Stderr(), format+"\n", args...)

		return 1
	}

	h.mu.Lock()
	sudo := h.faults.sudo
	h.mu.Unlock()

	switch hasSudo := strings.HasPrefix(line, "sudo "); {
	case hasSudo && sudo != SudoFree:
		return refuse("sudo: a password is required")
	case !hasSudo && h.options.User != "root":
		return refuse("%s is not root", h.options.User)
	}

	label := parseLabel(line)
	if label == "" {
		if strings.HasSuffix(line, " "+checkCommand) {
			return 0
		}

		h.recordUnknown(line)

		return 127
	}

	text, err := io.ReadAll(input)
	if err != nil {
		return refuse("read: %v", err)
	}

	if strings.Contains(string(text), "\nprobe() {\n") {
		return h.runProbe(string(text), channel)
	}

	script, payload, isWhole := strings.Cut(string(text), mainCall)
	if !isWhole {
		return refuse("the script was truncated")
	}

	if sum := digestLine.FindStringSubmatch(script); len(sum) > 1 && sum[1] != computeDigest(payload) {
		return refuse("the checksum of the input does not match: push it again")
	}

	if end := endLine.FindStringSubmatch(script); len(end) > 1 && !strings.HasSuffix(payload, "\n"+end[1]+"\n") {
		return refuse("the input was truncated: push it again")
	}

	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	h.light.received[label] = pushedScript{script: script, payload: payload}

	return 0
}

// runProbe reports for each part whether the host has accepted the part. If the probe names a
// digest, the input of the part must have that digest.
func (h *Host) runProbe(script string, channel ssh.Channel) int {
	h.light.mu.Lock()
	defer h.light.mu.Unlock()

	for _, found := range probeBody.FindAllStringSubmatch(script, -1) {
		s, ok := h.light.received[found[2]]

		state := "lost"
		if sum := digestText.FindStringSubmatch(found[1]); ok && (len(sum) < 2 || sum[1] == computeDigest(s.payload)) {
			state = "intact"
		}

		fmt.Fprintf(channel, "%s %s\n", found[2], state)
	}

	return 0
}
