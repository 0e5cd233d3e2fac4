// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"strings"
)

// ID is whom a machine's identity speaks of: one claim.
type ID struct {
	Namespace, Name, UID string
}

// root is the first segment of the path of each machine's identity.
const root = "vm"

// URI is the SPIFFE ID in a trust domain (SPIFFE-ID, section 2).
func (id ID) URI(trustDomain string) string { return "spiffe://" + trustDomain + id.Path() }

// Path is the path of the SPIFFE ID, with its leading slash.
func (id ID) Path() string {
	return "/" + strings.Join([]string{root, id.Namespace, id.Name, id.UID}, "/")
}

// ParsePath reads the path of a machine's SPIFFE ID.
func ParsePath(path string) (ID, error) {
	parts := strings.Split(path, "/")
	if len(parts) != 5 || parts[0] != "" || parts[1] != root {
		return ID{}, fmt.Errorf("read SPIFFE path %q: it is not that of a machine: /%s/NAMESPACE/CLAIM/UID", path, root)
	}

	id := ID{Namespace: parts[2], Name: parts[3], UID: parts[4]}
	if id.Namespace == "" || id.Name == "" || id.UID == "" {
		return ID{}, fmt.Errorf("read SPIFFE path %q: a part of it is empty", path)
	}

	return id, nil
}
