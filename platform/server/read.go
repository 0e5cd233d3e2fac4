// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// maxPage is the largest page number. Larger ones have no resources either.
const maxPage = 1 << 30

// getResource returns the resource that the request names. If the request has a search condition that does not
// hold for the resource, getResource returns a not-found error.
func (s *Server) getResource(r *http.Request) (response, error) {
	ctx, condition := r.Context(), r.URL.Query().Get("search")
	target := requestFromContext(ctx).scope

	resource, err := s.findResource(ctx, s.store.Get, target)
	if err != nil {
		return response{}, err
	}

	out, err := s.newResponse(http.StatusOK, resource)
	if err != nil || condition == "" {
		return out, err
	}

	// A condition that is valid alone cannot end the parentheses of the combined search below.
	if _, err := search.Parse(condition); err != nil {
		return response{}, newQueryError("search", err)
	}

	found, _, err := s.store.List(ctx, store.ListQuery{
		Search: "id = '" + canonicalID(target.id) + "' and (" + condition + ")", Size: 1,
		Tenancy: requestFromContext(ctx).tenancy,
	})
	if err == nil && len(found) == 0 {
		err = newNotFound("", target.id)
	}

	return out, err
}

// listResources returns one page of resources, with only the requested fields if the query names any.
func (s *Server) listResources(r *http.Request) (response, error) {
	ctx, query := r.Context(), r.URL.Query()
	target := requestFromContext(ctx).scope

	fields, err := parseFields(query.Get("fields"))
	if err != nil {
		return response{}, err
	}

	if query.Has("ref_type") != query.Has("ref_target_id") {
		return response{}, newInvalid(entity.FieldError{Field: "ref_type", Message: "has to be set together with ref_target_id"})
	}

	where, err := newPosition(query)
	if err != nil {
		return response{}, err
	}

	if err := s.checkKind(query.Get("kind")); err != nil {
		return response{}, err
	}

	listQuery := store.ListQuery{
		Search: query.Get("search"), Order: query.Get("order"), Offset: where.offset, Size: where.size,
		RefType: query.Get("ref_type"), RefTargetID: query.Get("ref_target_id"),
		Kind: query.Get("kind"), Tenancy: requestFromContext(ctx).tenancy,
	}

	if target.kind != nil {
		listQuery.Kind = target.kind.Kind
	}

	if target.parent != nil {
		// Check that the parent exists, because the list of a missing parent would be empty.
		if _, err := s.findResource(ctx, s.store.Get, scope{kind: target.parent, id: target.parentID}); err != nil {
			return response{}, err
		}

		listQuery.ParentID = target.parentID
	}

	found, total, err := s.store.List(ctx, listQuery)
	if err != nil {
		return response{}, err
	}

	out := encodedList{ResourceList: openapi.ResourceList{Page: where.page, Total: total}}

	for i := range found {
		item, err := s.encodeItem(found[i], fields)
		if err != nil {
			return response{}, err
		}

		out.items = append(out.items, item)
		// A page in two forms would take twice the memory.
		found[i] = store.Resource{}
	}

	out.finish(where.offset)

	return response{status: http.StatusOK, body: out}, nil
}

// encodeItem returns a resource as an item of a list, with the selected fields. It computes the ETag only if it is
// selected, which takes as long as the rest. It decodes the spec only if a part of it is selected, because decoded JSON
// takes many times the memory of its text.
func (s *Server) encodeItem(r store.Resource, fields selection) (json.RawMessage, error) {
	body := s.newBody(r)

	if _, hasETag := fields["etag"]; hasETag || fields == nil {
		var err error
		if body, err = s.toAPI(r); err != nil {
			return nil, err
		}
	}

	if fields == nil {
		return json.Marshal(body)
	}

	value, err := toJSONValue(body.Resource)
	if err != nil {
		return nil, err
	}

	selected, _ := fields.selectFrom(value).(map[string]any)

	if parts, isSelected := fields["spec"]; isSelected && parts == nil {
		selected["spec"] = body.Spec
	} else if isSelected {
		spec, err := exactjson.Parse(body.Spec)
		if err != nil {
			return nil, err
		}

		selected["spec"] = parts.selectFrom(spec)
	}

	return json.Marshal(selected)
}

// listStatuses returns one page of the adapter statuses of a resource. search can only select adapters.
func (s *Server) listStatuses(r *http.Request) (response, error) {
	ctx, query := r.Context(), r.URL.Query()
	target := requestFromContext(ctx).scope

	if _, err := s.findResource(ctx, s.store.Get, target); err != nil {
		return response{}, err
	}

	found, err := s.store.Statuses(ctx, target.id)
	if err != nil {
		return response{}, err
	}

	if condition := query.Get("search"); condition != "" {
		adapters, err := search.ParseOneOf("adapter", condition)
		if err != nil {
			return response{}, newQueryError("search", err)
		}

		found = slices.DeleteFunc(found, func(status openapi.AdapterStatus) bool {
			return !slices.Contains(adapters, status.Adapter)
		})
	}

	if err := sortStatuses(found, cmp.Or(query.Get("order"), "adapter")); err != nil {
		return response{}, err
	}

	where, err := newPosition(query)
	if err != nil {
		return response{}, err
	}

	out := encodedList{ResourceList: openapi.ResourceList{Page: where.page, Total: len(found)}}
	start := min(where.offset, len(found))
	bytes := 0

	for _, status := range found[start:min(start+where.size, len(found))] {
		item, err := json.Marshal(status)
		if err != nil {
			return response{}, fmt.Errorf("encode status of %s by %s: %w", target.id, status.Adapter, err)
		}

		if bytes += len(item); bytes > store.MaxListBytes && len(out.items) > 0 {
			break
		}

		out.items = append(out.items, item)
	}

	out.finish(start)

	return response{status: http.StatusOK, body: out}, nil
}

// position is the part of a list that a request names.
type position struct{ page, offset, size int }

func newPosition(query url.Values) (position, error) {
	if query.Has("page") && query.Has("offset") {
		return position{}, newInvalid(entity.FieldError{Field: "offset", Message: "cannot be set together with page"})
	}

	out := position{page: parseNumber(query, "page", 1), size: parseNumber(query, "size", 20)}
	out.offset = parseNumber(query, "offset", (min(out.page, maxPage)-1)*out.size)

	return out, nil
}

// parseNumber returns a number in the query of a request, which matches the OpenAPI document. It returns fallback if the
// query does not have it.
func parseNumber(query url.Values, name string, fallback int) int {
	number, err := strconv.Atoi(query.Get(name))
	if err != nil {
		return fallback
	}

	return number
}

// sortStatuses sorts statuses by a field and a direction. Equal statuses stay ordered by adapter.
func sortStatuses(list []openapi.AdapterStatus, order string) error {
	fields := map[string]func(a, b openapi.AdapterStatus) int{
		"adapter":             func(a, b openapi.AdapterStatus) int { return strings.Compare(a.Adapter, b.Adapter) },
		"created_time":        func(a, b openapi.AdapterStatus) int { return a.CreatedTime.Compare(b.CreatedTime) },
		"last_report_time":    func(a, b openapi.AdapterStatus) int { return a.LastReportTime.Compare(b.LastReportTime) },
		"observed_time":       func(a, b openapi.AdapterStatus) int { return a.ObservedTime.Compare(b.ObservedTime) },
		"observed_generation": func(a, b openapi.AdapterStatus) int { return cmp.Compare(a.ObservedGeneration, b.ObservedGeneration) },
	}

	words := strings.Fields(order)
	if len(words) == 1 {
		words = append(words, "asc")
	}

	if len(words) != 2 || fields[words[0]] == nil || words[1] != "asc" && words[1] != "desc" {
		return newQueryError("order", fmt.Errorf("write one of %s, followed by asc or desc",
			strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
	}

	slices.SortStableFunc(list, func(a, b openapi.AdapterStatus) int {
		if words[1] == "desc" {
			a, b = b, a
		}

		return fields[words[0]](a, b)
	})

	return nil
}

func newQueryError(field string, err error) error {
	return &Error{
		Code: CodeQuery, Detail: "errors lists the invalid fields",
		Fields: []entity.FieldError{{Field: field, Message: err.Error()}},
	}
}

// listChanges returns the changes after a cursor. If there are none, it waits for one, up to the time in
// the query or until the program shuts down.
func (s *Server) listChanges(r *http.Request) (response, error) {
	ctx, query := r.Context(), r.URL.Query()
	cursor, wait := query.Get("after"), time.Duration(parseNumber(query, "wait", 0))*time.Second

	if err := s.checkKind(query.Get("kind")); err != nil {
		return response{}, err
	}

	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	// A wait ends when the program starts to shut down. After that, requests do not wait.
	if s.options.Stopping.Err() != nil {
		wait = 0
	} else {
		defer context.AfterFunc(s.options.Stopping, cancel)()
	}

	feed, err := s.store.Changes(waitCtx, store.ChangeQuery{
		After: cursor, Kind: query.Get("kind"), Tenancy: requestFromContext(ctx).tenancy, Limit: parseNumber(query, "limit", 0),
		Wait: wait,
	})

	switch {
	case err == nil:
	case ctx.Err() == nil && waitCtx.Err() != nil && cursor != "":
		// The program is shutting down. The caller continues from the same cursor.
		feed = store.Feed{Next: cursor}
	default:
		return response{}, err
	}

	out := openapi.ChangeList{Items: make([]openapi.Change, 0, len(feed.Items)), Next: feed.Next}
	for _, change := range feed.Items {
		out.Items = append(out.Items, openapi.Change{
			Generation: change.Generation, Href: s.buildHref(change.Kind, change.ID, s.ownerKind(change), change.OwnerID), Id: change.ID,
			Kind: change.Kind, Operation: change.Operation,
		})
	}

	return response{status: http.StatusOK, body: out}, nil
}

// checkKind returns an error if the kind is not registered. Otherwise a misspelled kind would
// return an empty result.
func (s *Server) checkKind(name string) error {
	if name != "" && s.registry.ByKind(name) == nil {
		return newInvalid(entity.FieldError{Field: "kind", Message: "is not a registered kind"})
	}

	return nil
}

func (s *Server) ownerKind(change store.Change) string {
	kind := s.registry.ByKind(change.Kind)
	if kind == nil || kind.Parent == nil || change.OwnerID == "" {
		return ""
	}

	return kind.Parent.Kind
}
