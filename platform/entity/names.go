// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Condition types that the API itself sets.
const (
	// Reconciled says that the desired state of the resource is in place.
	Reconciled = "Reconciled"
	// LastKnownReconciled says that the last reconciled generation is still in place.
	LastKnownReconciled = "LastKnownReconciled"
)

const maxConditionTypeLength = 100

// AdapterConditionType returns the condition type that mirrors an adapter's condition Available.
// For the adapter dns-zone it is DnsZoneSuccessful.
func AdapterConditionType(adapter string) string {
	var out strings.Builder

	for word := range strings.FieldsFuncSeq(adapter, func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}

	return out.String() + "Successful"
}

// ValidateName returns what is wrong with the name of a resource. The result is empty if the name
// is valid: it has to be a DNS label (RFC 1123) with the length that the kind allows.
func (k *Kind) ValidateName(name string) string {
	if len(name) < k.NameMinLen || len(name) > k.NameMaxLen {
		return fmt.Sprintf("has %d characters: a %s needs %d to %d", len(name), k.Kind, k.NameMinLen, k.NameMaxLen)
	}

	return strings.Join(validation.IsDNS1123Label(name), "; ")
}
