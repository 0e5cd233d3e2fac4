// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"fmt"
	"net/netip"
	"slices"
)

// SpecError is one thing that is wrong with a Spec.
type SpecError struct {
	// Field is the path in the Spec, as it is called in the API: addresses[2].
	Field string
	// Value is what is there; empty if nothing is.
	Value string
	// Problem says what is wrong, and what to do.
	Problem string
}

// Error is field, value and problem.
func (e *SpecError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Problem)
	}

	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Problem)
}

func readRanges(field string, texts []string) ([]listed, []error) {
	var (
		out      []listed
		problems []error
	)

	for i, text := range texts {
		at := fmt.Sprintf("%s[%d]", field, i)

		in, err := ParseRange(text)
		if err != nil {
			problems = append(problems, &SpecError{Field: at, Value: text, Problem: err.Error()})

			continue
		}

		out = append(out, listed{Range: in, field: at})
	}

	return out, problems
}

func (p *Pool) readGateways(texts []string) []error {
	var (
		problems []error
		count    [families]int
	)

	for i, text := range texts {
		complain := func(problem string) {
			problems = append(problems, &SpecError{Field: fmt.Sprintf("gateway[%d]", i), Value: text, Problem: problem})
		}

		addr, err := parseAddr(text)

		switch {
		case err != nil:
			complain(err.Error())
		case slices.Contains(p.gateways, addr):
			complain("the gateway is there twice: leave one out")
		case addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast():
			complain("no machine may have this address: name the router's own one")
		default:
			count[FamilyOf(addr)]++
			p.gateways = append(p.gateways, addr)

			if count[FamilyOf(addr)] == maxGateways+1 {
				complain(fmt.Sprintf("more than %d %s gateways: leave the others out", maxGateways, FamilyOf(addr)))
			}
		}
	}

	return problems
}

// unusable says whether a range has addresses that no machine may have: the special
// ones of RFC 6890, and multicast.
func unusable(in listed) []error {
	special := [families][]string{
		IPv4: {"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"},
		IPv6: {"::/127", "::ffff:0:0/96", "ff00::/8"},
	}

	for _, text := range special[in.Family()] {
		prefix := netip.MustParsePrefix(text)
		if in.span().meets(span{first: number(prefix.Addr()), last: number(lastOf(prefix))}) {
			return []error{&SpecError{
				Field: in.field, Value: in.String(),
				Problem: fmt.Sprintf("it has addresses of %s, which no machine may have: leave those out", prefix),
			}}
		}
	}

	return nil
}
