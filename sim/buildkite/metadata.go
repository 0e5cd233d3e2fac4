// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"maps"
	"net/http"
	"slices"
)

// metadata is one entry of a build's meta-data, which all jobs of the build share. Agents store the
// commit that they checked out there.
type metadata struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// readKey decodes an entry, which must have a key.
func (c *call) readKey() (metadata, *response) {
	var body metadata
	if out := c.decodeBody(&body); out != nil {
		return body, out
	}
	if body.Key == "" {
		out := newError(http.StatusUnprocessableEntity, "Key can't be blank")
		return body, &out
	}
	return body, nil
}

func (s *Server) hasMetadata(c *call) response {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	_, found := c.job.build.metadata[body.Key]
	return newOK(map[string]any{"exists": found})
}

func (s *Server) getMetadata(c *call) response {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	value, found := c.job.build.metadata[body.Key]
	if !found {
		return newError(http.StatusNotFound, "No key "+body.Key+" found")
	}
	return newOK(metadata{body.Key, value})
}

func (s *Server) setMetadata(c *call) response {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	if body.Value == "" {
		return newError(http.StatusUnprocessableEntity, "Value can't be blank")
	}
	c.job.build.metadata[body.Key] = body.Value
	return newOK(map[string]any{})
}

func (s *Server) listMetadataKeys(c *call) response {
	return newOK(slices.Sorted(maps.Keys(c.job.build.metadata)))
}
