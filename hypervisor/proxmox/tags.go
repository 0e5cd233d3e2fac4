// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"strings"
)

const (
	tagManaged    = "hyperfleet"
	tagOperator   = "hf-op-"
	tagPool       = "hf-pool-"
	maxTagLength  = 124
	tagSeparators = ";, \t\n"
)

// machineTags are the tags of a machine, as Proxmox writes them: lower case, sorted,
// joined by semicolons. They take the place of the template's.
func machineTags(id identity, pool string, extra map[string]string) string {
	tags := []string{tagManaged, tagOperator + id.Hash()}
	if pool != "" {
		tags = append(tags, tagPool+tagText(pool))
	}

	for key, value := range extra {
		tag := tagText(key)
		if value != "" {
			tag += "-" + tagText(value)
		}

		tags = append(tags, strings.TrimLeft(tag, "-+."))
	}

	for i, tag := range tags {
		tags[i] = tag[:min(len(tag), maxTagLength)]
	}

	tags = slices.DeleteFunc(tags, func(tag string) bool { return tag == "" })
	slices.Sort(tags)

	return strings.Join(slices.Compact(tags), ";")
}

// tagText makes text fit for a tag: [a-z0-9_][a-z0-9_\-\+\.]*, the pattern pve-tag of
// PVE::JSONSchema in lower case.
func tagText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-', r == '+', r == '.':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(s))
}

// splitTags reads tags as Proxmox does: separated by semicolons, commas or spaces.
func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(tagSeparators, r) })
}

// hasOperatorTag tells whether the tags carry this operator's mark. It is a hint for
// where to look, never a proof.
func hasOperatorTag(id identity, tags string) bool {
	return slices.Contains(splitTags(tags), tagOperator+id.Hash())
}
