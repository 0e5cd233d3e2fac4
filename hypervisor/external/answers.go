// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Limits of answers, so that they fit into statuses.
const (
	maxNodes     = 1000
	maxMachines  = 100000
	maxTemplates = 1000
	maxName      = 253
	maxNodeName  = 63
	maxAddresses = 16
	maxText      = 1024
	maxTexts     = 16
	// maxNodeTexts limits the texts of all nodes together, because one status has them.
	maxNodeTexts  = 256 << 10
	maxRetryAfter = 10 * time.Minute
)

// reasonPattern is the form of a condition's reason.
var reasonPattern = regexp.MustCompile(`^[A-Za-z]\w{0,127}$`)

func isReason(reason string) bool { return reasonPattern.MatchString(reason) }

// isControl reports whether a terminal would interpret the character, or hide a part of the text because of it.
func isControl(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// isName reports whether a text fits into a field of a status that is shown to people.
func isName(text string, limit int) bool {
	return len(text) <= limit && utf8.ValidString(text) && !strings.ContainsFunc(text, isControl)
}

// limitText returns a text for people with at most maxText bytes, and without control characters.
func limitText(text string) string { return limitTextTo(text, maxText) }

func limitTextTo(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > limit {
		text = text[:limit]
		for !utf8.ValidString(text) {
			text = text[:len(text)-1]
		}

		text += "…"
	}

	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}

		return r
	}, text)
}

// newAnswerError returns the error for an answer that the operator cannot work with. The operator waits, because another
// version of the program may answer better.
func newAnswerError(operation, problem string) error {
	return hypervisor.Errorf(hypervisor.Unavailable, "ProviderAnswerInvalid",
		"read the answer of provider to %s: %s: run `hyperfleet provider conform` against the provider", operation, limitText(problem))
}

// checkMachine returns an error if the call cannot return this machine. id and owner are those of the machine
// in the request. They are 0 and nil for List, which requests no particular machine.
func checkMachine(operation string, m *hypervisor.Machine, id int, owner *hypervisor.Owner) error {
	states := []hypervisor.State{
		hypervisor.StateCreating, hypervisor.StatePrepared, hypervisor.StateRunning, hypervisor.StateStopped,
		hypervisor.StateDeleting, hypervisor.StateRemains,
	}

	switch {
	case !slices.Contains(states, m.State):
		return newAnswerError(operation, fmt.Sprintf("a machine has the state %q, which does not exist", limitText(string(m.State))))
	case id != 0 && m.ID != id:
		return newAnswerError(operation, fmt.Sprintf("it has machine %d instead of machine %d", m.ID, id))
	case owner != nil && m.Owner.UID != owner.UID:
		return newAnswerError(operation, fmt.Sprintf("machine %d has another owner than %s/%s", m.ID, owner.Namespace, owner.Name))
	case m.ID < 0 || !isName(m.Name, maxName) || !isName(m.Node, maxNodeName) || !isValidOwner(m.Owner):
		return newAnswerError(operation,
			fmt.Sprintf("a name of machine %d is too long or has control characters, or its ID is negative", m.ID))
	case !isMACOrEmpty(m.MAC) || !isIPOrEmpty(m.IP):
		return newAnswerError(operation,
			fmt.Sprintf("machine %d has the addresses %q and %q: want a MAC address and an IP address, or none",
				m.ID, limitText(m.MAC), limitText(m.IP)))
	}

	m.Message = limitText(m.Message)

	return nil
}

func isValidOwner(owner hypervisor.Owner) bool {
	return isName(owner.Namespace, maxName) && isName(owner.Name, maxName) &&
		isName(owner.UID, maxName) && isName(owner.Pool, maxName)
}

func isMACOrEmpty(text string) bool {
	_, err := net.ParseMAC(text)

	return text == "" || err == nil
}

func isIPOrEmpty(text string) bool {
	_, err := netip.ParseAddr(text)

	return text == "" || err == nil
}

// checkAddresses returns an error if the addresses of a machine that exists cannot be recorded in its claim.
func checkAddresses(operation string, addresses []string) error {
	if len(addresses) > maxAddresses {
		return newAnswerError(operation, fmt.Sprintf("it has %d addresses, more than %d", len(addresses), maxAddresses))
	}

	for _, address := range addresses {
		if _, err := netip.ParsePrefix(address); err != nil {
			return newAnswerError(operation, fmt.Sprintf("the address %q is no IP address with a prefix length", limitText(address)))
		}
	}

	return nil
}

// checkNodes returns an error if the nodes cannot be reported in a status.
func checkNodes(operation string, nodes []hypervisor.Node) error {
	if len(nodes) > maxNodes {
		return newAnswerError(operation, fmt.Sprintf("it has %d nodes, more than %d", len(nodes), maxNodes))
	}

	seen := map[string]bool{}
	limit := min(maxText, maxNodeTexts/max(len(nodes), 1))

	for i := range nodes {
		node := &nodes[i]

		if node.Name == "" || !isName(node.Name, maxNodeName) || seen[node.Name] {
			return newAnswerError(operation,
				fmt.Sprintf("the name %q of a node is empty, too long, not unique or has control characters", limitText(node.Name)))
		}

		if isNegative(node.Free) || isNegative(node.Total) {
			return newAnswerError(operation, fmt.Sprintf("node %s has negative resources", node.Name))
		}

		seen[node.Name] = true
		node.OfflineReason = limitTextTo(node.OfflineReason, limit)
		node.Exclusions = limitTexts(node.Exclusions, limit/max(min(len(node.Exclusions), maxTexts), 1))
	}

	return nil
}

func isNegative(r hypervisor.Resources) bool { return r.CPU < 0 || r.Memory < 0 || r.Disk < 0 }

// limitTexts returns the first texts of a list, each with at most limit bytes.
func limitTexts(texts []string, limit int) []string {
	var out []string
	for _, text := range texts[:min(len(texts), maxTexts)] {
		out = append(out, limitTextTo(text, limit))
	}

	return out
}
