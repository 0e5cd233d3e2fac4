// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	ifMatchHeader = "If-Match"
	// anyETag matches every resource that exists.
	anyETag = "*"
)

// readIfMatch parses the header If-Match (RFC 9110, section 13.1.1).
func readIfMatch(r *http.Request) error {
	values := r.Header.Values(ifMatchHeader)
	if len(values) == 0 {
		return nil
	}

	tags, ok := parseETags(strings.Join(values, ","))
	if !ok {
		return newInvalid(entity.FieldError{
			Field: ifMatchHeader, Message: `has to be ETags with their quotes, separated by commas, or *`,
		})
	}

	requestFromContext(r.Context()).ifMatch = tags

	return nil
}

// parseETags returns the ETags in a list with their quotes. Weak ones begin with W/.
func parseETags(list string) (tags []string, ok bool) {
	rest := strings.Trim(list, " \t,")
	if rest == anyETag {
		return []string{anyETag}, true
	}

	for rest != "" {
		opaque, isWeak := strings.CutPrefix(rest, "W/")
		if !strings.HasPrefix(opaque, `"`) {
			return nil, false
		}

		end := strings.IndexByte(opaque[1:], '"')
		if end < 0 {
			return nil, false
		}

		tag := opaque[:end+2]
		if isWeak {
			tag = "W/" + tag
		}

		tags = append(tags, tag)
		next := strings.TrimLeft(opaque[end+2:], " \t")

		if next != "" && next[0] != ',' {
			return nil, false
		}

		rest = strings.TrimLeft(next, " \t,")
	}

	return tags, len(tags) > 0
}

// checkIfMatch returns an error if a request has the header If-Match, and the resource has none of its ETags.
func (s *Server) checkIfMatch(ctx context.Context, r store.Resource) error {
	return s.compareETags(ctx, r, func(tag string) string { return tag })
}

// checkReportIfMatch is checkIfMatch for a report. It compares only the part of the ETag for what clients have
// written, and not the part for the status. Otherwise the report of one adapter would fail because of the
// reports of others.
func (s *Server) checkReportIfMatch(ctx context.Context, r store.Resource) error {
	return s.compareETags(ctx, r, func(tag string) string {
		desired, _, _ := strings.Cut(tag, ".")

		return desired
	})
}

func (s *Server) compareETags(ctx context.Context, r store.Resource, part func(tag string) string) error {
	wanted := requestFromContext(ctx).ifMatch
	if wanted == nil || slices.Contains(wanted, anyETag) {
		return nil
	}

	current, err := s.toAPI(r)
	if err != nil {
		return err
	}

	if !slices.ContainsFunc(wanted, func(tag string) bool { return part(tag) == part(current.Etag) }) {
		return newProblem(CodeChanged, "%s %s does not have an ETag of If-Match: read it again", r.Kind, r.ID)
	}

	return nil
}
