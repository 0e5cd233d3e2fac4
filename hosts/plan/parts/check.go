// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package parts

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
)

// CheckCIDR takes an IPv4 network in its canonical form. A firewall is built of it, so
// what could open more than was meant is refused: host bits, and networks wider than /8.
func CheckCIDR(field, text string) error {
	const widest = 8

	prefix, err := netip.ParsePrefix(text)

	switch {
	case err != nil || !prefix.Addr().Is4():
		return fmt.Errorf("%s %q: must be an IPv4 network such as 10.32.0.0/16", field, text)
	case prefix.Bits() < widest:
		return fmt.Errorf("%s %q: is wider than /%d, and would open nearly everything: name the network that is meant",
			field, text, widest)
	case prefix.Masked().String() != text:
		return fmt.Errorf("%s %q: has bits set beyond its prefix: write %s", field, text, prefix.Masked())
	default:
		return nil
	}
}

// CheckIPv4 takes the address of one machine.
func CheckIPv4(field, text string) error {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || !addr.IsGlobalUnicast() {
		return fmt.Errorf("%s %q: must be the IPv4 address of one machine, such as 10.96.0.10", field, text)
	}

	return nil
}

// CheckBinary demands a program.
func CheckBinary(field string, content plan.Content) error {
	if content.Size() == 0 {
		return fmt.Errorf("%s is missing: the operator's image must carry it", field)
	}

	return nil
}

// CheckTags takes the tags of a tailnet (Tailscale, "Group devices with tags": tag: and
// then a letter, letters, digits and hyphens). A host without a tag would belong to the
// person whose key it used.
func CheckTags(field string, tags []string) error {
	form := regexp.MustCompile(`^tag:[A-Za-z][A-Za-z0-9-]*$`)

	if len(tags) == 0 {
		return fmt.Errorf("%s is empty: name at least one tag, such as tag:host", field)
	}

	for _, tag := range tags {
		if !form.MatchString(tag) {
			return fmt.Errorf("%s %q: must be tag: and a name of letters, digits and hyphens, such as tag:host", field, tag)
		}
	}

	return nil
}

// CheckNodeLabels takes labels of a Kubernetes node.
func CheckNodeLabels(field string, labels map[string]string) error {
	for key, value := range labels {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return fmt.Errorf("%s: key %q: %s", field, key, strings.Join(wrong, "; "))
		}

		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			return fmt.Errorf("%s: value %q of %s: %s", field, value, key, strings.Join(wrong, "; "))
		}
	}

	return nil
}

// CheckNodeName takes the name of a Kubernetes node.
func CheckNodeName(field, name string) error {
	if name == "" {
		return fmt.Errorf("%s is missing: it is the name of this host's machine", field)
	}

	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return fmt.Errorf("%s %q: %s", field, name, strings.Join(wrong, "; "))
	}

	return nil
}

// Shut are the networks that machines may not reach, but for what a configuration opens:
// private ones (RFC 1918, without 192.168.0.0/16, where machines themselves live), those
// of a tailnet or a provider (RFC 6598), and link-local ones (RFC 3927), where clouds
// answer with credentials.
func Shut() []string {
	return []string{"10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10", "169.254.0.0/16"}
}
