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

// ValidateCIDR returns an error unless the text is an IPv4 network in canonical form. Firewall
// rules are built from the network, so ValidateCIDR rejects what could open more than intended:
// host bits, and networks wider than /8.
func ValidateCIDR(field, text string) error {
	const widest = 8

	prefix, err := netip.ParsePrefix(text)

	switch {
	case err != nil || !prefix.Addr().Is4():
		return fmt.Errorf("%s %q: must be an IPv4 network such as 10.32.0.0/16", field, text)
	case prefix.Bits() < widest:
		return fmt.Errorf("%s %q: is wider than /%d, and would open nearly everything: use a smaller network",
			field, text, widest)
	case prefix.Masked().String() != text:
		return fmt.Errorf("%s %q: has bits set beyond its prefix: write %s", field, text, prefix.Masked())
	default:
		return nil
	}
}

// ValidateIPv4 returns an error unless the text is the IPv4 address of one machine.
func ValidateIPv4(field, text string) error {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || !addr.IsGlobalUnicast() {
		return fmt.Errorf("%s %q: must be the IPv4 address of one machine, such as 10.96.0.10", field, text)
	}

	return nil
}

// ValidateBinary returns an error if the content is empty.
func ValidateBinary(field string, content plan.Content) error {
	if content.Size() == 0 {
		return fmt.Errorf("%s is missing: the operator's image must contain it", field)
	}

	return nil
}

// ValidateTags returns an error unless there is at least one tag and all tags are valid (Tailscale,
// "Group devices with tags": "tag:", then a letter, then letters, digits and hyphens). A host
// without a tag would belong to the person whose key it used.
func ValidateTags(field string, tags []string) error {
	pattern := regexp.MustCompile(`^tag:[A-Za-z][A-Za-z0-9-]*$`)

	if len(tags) == 0 {
		return fmt.Errorf("%s is empty: name at least one tag, such as tag:host", field)
	}

	for _, tag := range tags {
		if !pattern.MatchString(tag) {
			return fmt.Errorf("%s %q: must be \"tag:\" and a name of letters, digits and hyphens, such as tag:host", field, tag)
		}
	}

	return nil
}

// ValidateNodeLabels returns an error unless all labels are valid labels of a Kubernetes node.
func ValidateNodeLabels(field string, labels map[string]string) error {
	for key, value := range labels {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("%s: key %q: %s", field, key, strings.Join(problems, "; "))
		}

		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			return fmt.Errorf("%s: value %q of %s: %s", field, value, key, strings.Join(problems, "; "))
		}
	}

	return nil
}

// ValidateNodeName returns an error unless the name is a valid name of a Kubernetes node.
func ValidateNodeName(field, name string) error {
	if name == "" {
		return fmt.Errorf("%s is missing: it is the name of this host's machine", field)
	}

	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%s %q: %s", field, name, strings.Join(problems, "; "))
	}

	return nil
}

// DeniedNetworks returns the networks that machines can't reach unless the configuration opens
// them: private networks (RFC 1918, except 192.168.0.0/16, which machines themselves use), networks
// of tailnets and providers (RFC 6598), and link-local networks (RFC 3927), where clouds serve
// credentials.
func DeniedNetworks() []string {
	return []string{"10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10", "169.254.0.0/16"}
}
