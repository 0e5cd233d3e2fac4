// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Conditions that the API itself gives.
const (
	// Reconciled says that what is asked for is there.
	Reconciled = "Reconciled"
	// LastKnownReconciled says that the last generation that was reconciled still is.
	LastKnownReconciled = "LastKnownReconciled"
)

const maxConditionType = 100

// AdapterCondition is the condition that mirrors an adapter's Available: for dns-zone,
// DnsZoneSuccessful.
func AdapterCondition(adapter string) string {
	var out strings.Builder

	for word := range strings.FieldsFuncSeq(adapter, func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}

	return out.String() + "Successful"
}

// CheckName says what is wrong with the name of a resource: it is a DNS label (RFC 1123),
// as long as its kind allows. Empty means that it is fine.
func (k *Kind) CheckName(name string) string {
	if len(name) < k.NameMinLen || len(name) > k.NameMaxLen {
		return fmt.Sprintf("has %d characters; a %s has %d to %d", len(name), k.Kind, k.NameMinLen, k.NameMaxLen)
	}

	return strings.Join(validation.IsDNS1123Label(name), "; ")
}
