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

// buildTags returns the tags of a machine in Proxmox's notation: lower case, sorted, joined by semicolons.
// They replace the template's tags.
func buildTags(id identity, pool string, extra map[string]string) string {
	tags := []string{tagManaged, tagOperator + id.Hash()}
	if pool != "" {
		tags = append(tags, tagPool+sanitizeTag(pool))
	}

	for key, value := range extra {
		tag := sanitizeTag(key)
		if value != "" {
			tag += "-" + sanitizeTag(value)
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

// sanitizeTag converts text to a valid tag: [a-z0-9_][a-z0-9_\-\+\.]*, the pattern pve-tag of
// PVE::JSONSchema in lower case.
func sanitizeTag(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-', r == '+', r == '.':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(s))
}

// splitTags splits tags as Proxmox does. Semicolons, commas and white space separate tags.
func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(tagSeparators, r) })
}

// hasOperatorTag reports whether the tags contain this operator's tag. The tag only indicates where to
// look. It does not prove the ownership.
func hasOperatorTag(id identity, tags string) bool {
	return slices.Contains(splitTags(tags), tagOperator+id.Hash())
}
