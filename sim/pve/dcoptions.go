// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"slices"
	"strings"
)

// optionSchema describes the options of datacenter.cfg.
func optionSchema() schema {
	out := schema{
		"keyboard": {enum: keyboards()}, "console": {enum: []string{"applet", "vv", "html5", "xtermjs"}},
		"max_workers": {kind: kInt, min: 1}, "description": {maxLen: 64 << 10}, "migration_unsecure": {kind: kBool},
	}
	for name := range strings.FieldsSeq("bwlimit consent-text crs delete digest email_from fencing ha http_proxy language " +
		"location " +
		"mac_prefix migration next-id notify registered-tags replication tag-style u2f " +
		"user-tag-access webauthn") {
		out[name] = param{}
	}
	return out
}

// newOptions returns the options of datacenter.cfg that the model sets.
func newOptions(m Model) map[string]string {
	out := map[string]string{}
	if m.NextID != (Range{}) {
		out["next-id"] = fmt.Sprintf("lower=%d,upper=%d", m.NextID.Lower, m.NextID.Upper)
	}
	if len(m.RegisteredTags) > 0 {
		out["registered-tags"] = strings.Join(m.RegisteredTags, ";")
	}
	if m.UserTagAccess != "" {
		out["user-tag-access"] = "user-allow=" + m.UserTagAccess
	}
	return out
}

// getOptions returns the datacenter options. A caller without Sys.Audit sees only the allowed tags.
func getOptions(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]any{"allowed-tags": splitTags(s.options["registered-tags"])}
	if s.requireLocked(c.auth, "/", "Sys.Audit") != nil {
		return out, nil
	}
	out["mac_prefix"], out["description"] = "BC:24:11", ""
	for name, value := range s.options {
		switch name {
		case "description":
			out[name] = strings.TrimRight(value, "\n") + "\n"
		case "registered-tags":
			out[name] = splitTags(value)
		case "next-id", "tag-style", "user-tag-access", "migration", "ha", "crs", "bwlimit", "notify":
			out[name] = encodeProperties(value)
		default:
			out[name] = value
		}
	}
	return out, nil
}

// encodeProperties returns a list of properties as an object.
func encodeProperties(value string) map[string]any {
	out := map[string]any{}
	properties, _ := parseProperties(value, "type")
	for k, v := range properties {
		out[k] = v
		if k == "case-sensitive" {
			out[k] = boolToInt(isTrue(v))
		}
	}
	return out
}

func putOptions(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range c.params {
		if k != "delete" && k != "digest" {
			s.options[k] = v
		}
	}
	for _, k := range splitTags(c.param("delete")) {
		delete(s.options, k)
	}
	return nil, nil //nolint:nilnil // "data": null
}

// findNextIDs returns the range of the VMIDs that the cluster suggests. The caller holds s.mu.
func (s *Server) findNextIDs() (low, high int) {
	low, high = minVMID, 1_000_000
	limits, _ := parseProperties(s.options["next-id"], "lower")
	if n := atoi(limits["lower"]); n != 0 {
		low = n
	}
	if n := atoi(limits["upper"]); n != 0 {
		high = n
	}
	return low, high
}

// canSetTag reports whether a user without Sys.Modify can add or remove a tag. The caller holds s.mu.
func (s *Server) canSetTag(tag string) bool {
	if slices.Contains(splitTags(s.options["registered-tags"]), tag) {
		return false
	}
	rules, _ := parseProperties(s.options["user-tag-access"], "user-allow")
	return rules["user-allow"] != "none"
}
