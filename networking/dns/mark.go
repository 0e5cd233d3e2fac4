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
	// ownershipPrefix precedes the name of a record in the name of its ownership record. The underscore
	// keeps such names different from host names (RFC 8552).
	ownershipPrefix = "_hyperfleet."
	heritage        = "hyperfleet"
	// maxOwnershipText is the maximum length of a character-string in a TXT record (RFC 1035, 3.3).
	maxOwnershipText = 255
	// maxName is the maximum length of a DNS name as text.
	maxName = 253
)

// Owner is the owner of a record.
type Owner struct {
	// Operator is the UID of the operator.
	Operator string
	// UID is the UID of the machine's object.
	UID string
	// Kind is the kind of the machine's object. An empty kind means MachineClaim.
	Kind string
	// Claim is NAMESPACE/NAME of the machine's object. It is only for people who read the zone.
	Claim string
}

// ownershipRecord is the content of an ownership record.
type ownershipRecord struct {
	operator, uid, record string
	// machine is the kind and NAMESPACE/NAME of the machine, for messages.
	machine string
}

// kubevirtField is the field with the machine's name in the ownership record of a KubevirtMachine. For a
// MachineClaim, the field is claim.
const kubevirtField = "kubevirtmachine"

var plainText = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// encodeID returns text if an ownership record can contain it, and the digest of text otherwise.
func encodeID(text string) string {
	if plainText.MatchString(text) {
		return text
	}

	return digest(text)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))

	return hex.EncodeToString(sum[:8])
}

// recordID returns an ID for one of the records of a name. It has the type and a digest of the value.
func recordID(kind, value string) string { return kind + "-" + digest(normalizeValue(kind, value)) }

// ownershipName returns the DNS name of the ownership records for the records of a name.
func ownershipName(name string) string { return ownershipPrefix + canonicalName(name) }

// ownershipText returns the text of the ownership record of a record. The name of the machine at the end is
// only for people. It is truncated if the text does not fit into one character-string.
func ownershipText(owner Owner, record v1alpha1.DNSRecord) string {
	field := "claim"
	if owner.Kind == v1alpha1.KindKubevirtMachine {
		field = kubevirtField
	}

	text := "heritage=" + heritage + ",operator=" + encodeID(owner.Operator) + ",uid=" + encodeID(owner.UID) +
		",record=" + recordID(record.Type, record.Value) + "," + field + "=" + owner.Claim

	return text[:min(len(text), maxOwnershipText)]
}

// parseOwnership parses an ownership record. It returns false for any other TXT record, such as an
// ownership record of another program.
func parseOwnership(text string) (ownershipRecord, bool) {
	fields := map[string]string{}

	for part := range strings.SplitSeq(strings.Trim(text, `"`), ",") {
		key, value, ok := strings.Cut(part, "=")
		if _, isDuplicate := fields[key]; !ok || isDuplicate {
			return ownershipRecord{}, false
		}

		fields[key] = value
	}

	found := ownershipRecord{
		operator: fields["operator"], uid: fields["uid"], record: fields["record"], machine: "claim " + fields["claim"],
	}
	if name, ok := fields[kubevirtField]; ok {
		found.machine = v1alpha1.KindKubevirtMachine + " " + name
	}

	if fields["heritage"] != heritage || found.operator == "" || found.uid == "" || found.record == "" {
		return ownershipRecord{}, false
	}

	return found, true
}
