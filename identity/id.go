// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"strings"
)

// ID identifies the MachineClaim that a machine belongs to.
type ID struct {
	Namespace, Name, UID string
}

// pathRoot is the first segment of the path of each machine's SPIFFE ID.
const pathRoot = "vm"

// URI returns the SPIFFE ID in the trust domain (SPIFFE-ID, section 2).
func (id ID) URI(trustDomain string) string { return "spiffe://" + trustDomain + id.Path() }

// Path returns the path of the SPIFFE ID with its leading slash.
func (id ID) Path() string {
	return "/" + strings.Join([]string{pathRoot, id.Namespace, id.Name, id.UID}, "/")
}

// ParsePath parses the path of a machine's SPIFFE ID.
func ParsePath(path string) (ID, error) {
	parts := strings.Split(path, "/")
	if len(parts) != 5 || parts[0] != "" || parts[1] != pathRoot {
		return ID{}, fmt.Errorf("parse SPIFFE path %q: the path of a machine is /%s/NAMESPACE/CLAIM/UID", path, pathRoot)
	}

	id := ID{Namespace: parts[2], Name: parts[3], UID: parts[4]}
	if id.Namespace == "" || id.Name == "" || id.UID == "" {
		return ID{}, fmt.Errorf("parse SPIFFE path %q: a segment is empty", path)
	}

	return id, nil
}
