// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// SpecError is one problem in a Spec.
type SpecError struct {
	// Field is the path of the field with its name in the API, such as addresses[2].
	Field string
	// Value is the value of the field. It is empty if the field has no value.
	Value string
	// Problem describes what is wrong and what to do.
	Problem string
}

// Error returns the field, the value and the problem.
func (e *SpecError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Problem)
	}

	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Problem)
}

func parseRanges(field string, texts []string) ([]rangeEntry, []error) {
	var (
		out      []rangeEntry
		problems []error
	)

	for i, text := range texts {
		path := fmt.Sprintf("%s[%d]", field, i)

		parsed, err := ParseRange(text)
		if err != nil {
			problems = append(problems, &SpecError{Field: path, Value: text, Problem: err.Error()})

			continue
		}

		out = append(out, rangeEntry{Range: parsed, field: path})
	}

	return out, problems
}

func (p *Pool) parseGateways(texts []string) []error {
	var (
		problems []error
		count    [familyCount]int
	)

	for i, text := range texts {
		addProblem := func(problem string) {
			problems = append(problems, &SpecError{Field: fmt.Sprintf("gateway[%d]", i), Value: text, Problem: problem})
		}

		addr, err := parseAddr(text)

		switch {
		case err != nil:
			addProblem(err.Error())
		case slices.Contains(p.gateways, addr):
			addProblem("the gateway is listed twice: remove one of them")
		case addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast():
			addProblem("no machine can use this address: write the address of the router")
		default:
			count[FamilyOf(addr)]++
			p.gateways = append(p.gateways, addr)

			if count[FamilyOf(addr)] == maxGateways+1 {
				addProblem(fmt.Sprintf("there are more than %d %s gateways: remove the others", maxGateways, FamilyOf(addr)))
			}
		}
	}

	return problems
}

// checkUsable returns a problem if a range contains addresses that no machine can use. These are special
// addresses of RFC 6890 and multicast addresses.
func checkUsable(r rangeEntry) []error {
	forbidden := [familyCount][]string{
		IPv4: {"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"},
		IPv6: {"::/127", "::ffff:0:0/96", "ff00::/8"},
	}

	for _, text := range forbidden[r.Family()] {
		prefix := netip.MustParsePrefix(text)
		if r.span().overlaps(span{first: toUint128(prefix.Addr()), last: toUint128(netipx.PrefixLastIP(prefix))}) {
			return []error{&SpecError{
				Field: r.field, Value: r.String(),
				Problem: fmt.Sprintf("it has addresses of %s, which no machine can use: remove these addresses", prefix),
			}}
		}
	}

	return nil
}
