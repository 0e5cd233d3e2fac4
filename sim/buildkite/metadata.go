// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"maps"
	"net/http"
	"slices"
)

// metadata is one entry of a build's meta-data, which all of its jobs share. Agents keep the
// commit there that they checked out.
type metadata struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// readKey reads an entry, which must have a key.
func (c *call) readKey() (metadata, *reply) {
	var body metadata
	if out := c.read(&body); out != nil {
		return body, out
	}
	if body.Key == "" {
		out := fail(http.StatusUnprocessableEntity, "Key can't be blank")
		return body, &out
	}
	return body, nil
}

func (s *Server) metadataExists(c *call) reply {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	_, found := c.job.build.metadata[body.Key]
	return ok(map[string]any{"exists": found})
}

func (s *Server) getMetadata(c *call) reply {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	value, found := c.job.build.metadata[body.Key]
	if !found {
		return fail(http.StatusNotFound, "No key "+body.Key+" found")
	}
	return ok(metadata{body.Key, value})
}

func (s *Server) setMetadata(c *call) reply {
	body, out := c.readKey()
	if out != nil {
		return *out
	}
	if body.Value == "" {
		return fail(http.StatusUnprocessableEntity, "Value can't be blank")
	}
	c.job.build.metadata[body.Key] = body.Value
	return ok(map[string]any{})
}

func (s *Server) metadataKeys(c *call) reply {
	return ok(slices.Sorted(maps.Keys(c.job.build.metadata)))
}
