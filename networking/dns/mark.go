// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// markLabel comes before the name of a marked record. The underscore keeps it apart
	// from names of hosts (RFC 8552).
	markLabel = "_hyperfleet."
	heritage  = "hyperfleet"
	// maxMark is what one character-string of a TXT record holds (RFC 1035, 3.3).
	maxMark = 255
	// maxName of a DNS name in its written form.
	maxName = 253
)

// Owner is who a record belongs to.
type Owner struct {
	// Operator is the operator's UID.
	Operator string
	// UID of the machine's object.
	UID string
	// Kind of the machine's object; empty is MachineClaim.
	Kind string
	// Claim is NAMESPACE/NAME of the machine's object, for people who read the zone.
	Claim string
}

// mark is what a mark says.
type mark struct {
	operator, uid, record string
	// machine is its kind in words, and NAMESPACE/NAME.
	machine string
}

// kubevirtField names the machine in the mark of a KubevirtMachine, as claim does in that of
// a MachineClaim.
const kubevirtField = "kubevirtmachine"

var plain = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// id is a text that fits into a mark: itself, or its digest.
func id(text string) string {
	if plain.MatchString(text) {
		return text
	}

	return digest(text)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))

	return hex.EncodeToString(sum[:8])
}

// recordID names one record of a name: its type and a digest of its value.
func recordID(kind, value string) string { return kind + "-" + digest(normal(kind, value)) }

// markName is where the marks of a name's records are.
func markName(name string) string { return markLabel + canonical(name) }

// markText is the mark of a record. The machine's name, at the end, is for people, and cut
// where the whole would not fit into one character-string.
func markText(owner Owner, record v1alpha1.DNSRecord) string {
	field := "claim"
	if owner.Kind == v1alpha1.KindKubevirtMachine {
		field = kubevirtField
	}

	text := "heritage=" + heritage + ",operator=" + id(owner.Operator) + ",uid=" + id(owner.UID) +
		",record=" + recordID(record.Type, record.Value) + "," + field + "=" + owner.Claim

	return text[:min(len(text), maxMark)]
}

// parseMark reads a mark. Other TXT records, those of other programs with the same habit
// among them, are none.
func parseMark(text string) (mark, bool) {
	fields := map[string]string{}

	for part := range strings.SplitSeq(strings.Trim(text, `"`), ",") {
		key, value, ok := strings.Cut(part, "=")
		if _, twice := fields[key]; !ok || twice {
			return mark{}, false
		}

		fields[key] = value
	}

	found := mark{
		operator: fields["operator"], uid: fields["uid"], record: fields["record"], machine: "claim " + fields["claim"],
	}
	if name, ok := fields[kubevirtField]; ok {
		found.machine = v1alpha1.KindKubevirtMachine + " " + name
	}

	if fields["heritage"] != heritage || found.operator == "" || found.uid == "" || found.record == "" {
		return mark{}, false
	}

	return found, true
}
