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
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// maxPage is the largest page number. Larger ones have no resources either.
const maxPage = 1 << 30

// GetResource returns a resource.
func (s *Server) GetResource(w http.ResponseWriter, r *http.Request, _ string, params openapi.GetResourceParams) {
	out, err := s.getResource(r.Context(), requestFromContext(r.Context()).scope, ptr.Deref(params.Search, ""))
	s.writeResponse(w, r, out, err)
}

// getResource returns the resource that target names. If the search condition is not empty and does not
// hold for the resource, getResource returns a not-found error.
func (s *Server) getResource(ctx context.Context, target scope, condition string) (response, error) {
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

// ListResources returns a page of resources.
func (s *Server) ListResources(w http.ResponseWriter, r *http.Request, params openapi.ListResourcesParams) {
	out, err := s.listResources(r.Context(), requestFromContext(r.Context()).scope, params)
	s.writeResponse(w, r, out, err)
}

// listResources returns one page of resources, with only the requested fields if the query names any.
func (s *Server) listResources(ctx context.Context, target scope, query openapi.ListResourcesParams) (response, error) {
	fields, err := parseFields(query.Fields)
	if err != nil {
		return response{}, err
	}

	if (query.RefType == nil) != (query.RefTargetId == nil) {
		return response{}, newInvalid(entity.FieldError{Field: "ref_type", Message: "has to be set together with ref_target_id"})
	}

	where, err := newPosition(query.Page, query.Offset, query.Size)
	if err != nil {
		return response{}, err
	}

	if err := s.checkKind(query.Kind); err != nil {
		return response{}, err
	}

	listQuery := store.ListQuery{
		Search: ptr.Deref(query.Search, ""), Order: ptr.Deref(query.Order, "created_time desc"),
		Offset: where.offset, Size: where.size,
		RefType: ptr.Deref(query.RefType, ""), RefTargetID: ptr.Deref(query.RefTargetId, ""),
		Kind: ptr.Deref(query.Kind, ""), Tenancy: requestFromContext(ctx).tenancy,
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

// encodeItem returns a resource as an item of a list, with the selected fields. It decodes the spec only if a
// part of it is selected, because decoded JSON takes many times the memory of its text.
func (s *Server) encodeItem(r store.Resource, fields selection) (json.RawMessage, error) {
	body, err := s.toAPI(r)
	if err != nil {
		return nil, err
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

// ListResourceStatuses returns the statuses that adapters have reported for a resource.
func (s *Server) ListResourceStatuses(
	w http.ResponseWriter, r *http.Request, _ string, params openapi.ListResourceStatusesParams,
) {
	out, err := s.listStatuses(r.Context(), requestFromContext(r.Context()).scope, params)
	s.writeResponse(w, r, out, err)
}

// listStatuses returns one page of the adapter statuses of a resource. search can only select adapters.
func (s *Server) listStatuses(ctx context.Context, target scope, query openapi.ListResourceStatusesParams) (response, error) {
	if _, err := s.findResource(ctx, s.store.Get, target); err != nil {
		return response{}, err
	}

	found, err := s.store.Statuses(ctx, target.id)
	if err != nil {
		return response{}, err
	}

	if query.Search != nil && *query.Search != "" {
		adapters, err := search.ParseOneOf("adapter", *query.Search)
		if err != nil {
			return response{}, newQueryError("search", err)
		}

		found = slices.DeleteFunc(found, func(status openapi.AdapterStatus) bool {
			return !slices.Contains(adapters, status.Adapter)
		})
	}

	if err := sortStatuses(found, ptr.Deref(query.Order, "adapter")); err != nil {
		return response{}, err
	}

	where, err := newPosition(query.Page, query.Offset, query.Size)
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

func newPosition(page, offset, size *int) (position, error) {
	if page != nil && offset != nil {
		return position{}, newInvalid(entity.FieldError{Field: "offset", Message: "cannot be set together with page"})
	}

	out := position{page: ptr.Deref(page, 1), size: ptr.Deref(size, 20)}
	out.offset = ptr.Deref(offset, (min(out.page, maxPage)-1)*out.size)

	return out, nil
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

// newQueryError returns an error about one query parameter.
func newQueryError(field string, err error) error {
	return &Error{
		Code: CodeQuery, Detail: "errors lists the invalid fields",
		Fields: []entity.FieldError{{Field: field, Message: err.Error()}},
	}
}

// ListChanges returns the changes after a cursor.
func (s *Server) ListChanges(w http.ResponseWriter, r *http.Request, params openapi.ListChangesParams) {
	out, err := s.listChanges(r.Context(), params)
	s.writeResponse(w, r, out, err)
}

// listChanges returns the changes after a cursor. If there are none, it waits for one, up to the time in
// the query or until the program shuts down.
func (s *Server) listChanges(ctx context.Context, query openapi.ListChangesParams) (response, error) {
	if err := s.checkKind(query.Kind); err != nil {
		return response{}, err
	}

	cursor, wait := ptr.Deref(query.After, ""), time.Duration(ptr.Deref(query.Wait, 0))*time.Second

	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	// A wait ends when the program starts to shut down. After that, requests do not wait.
	if s.options.Stopping.Err() != nil {
		wait = 0
	} else {
		defer context.AfterFunc(s.options.Stopping, cancel)()
	}

	feed, err := s.store.Changes(waitCtx, store.ChangeQuery{
		After: cursor, Kind: ptr.Deref(query.Kind, ""), Tenancy: requestFromContext(ctx).tenancy, Limit: ptr.Deref(query.Limit, 500),
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
func (s *Server) checkKind(kind *string) error {
	if name := ptr.Deref(kind, ""); name != "" && s.registry.ByKind(name) == nil {
		return newInvalid(entity.FieldError{Field: "kind", Message: "is not a registered kind"})
	}

	return nil
}

// ownerKind returns the kind of the owner of a changed resource.
func (s *Server) ownerKind(change store.Change) string {
	kind := s.registry.ByKind(change.Kind)
	if kind == nil || kind.Parent == nil || change.OwnerID == "" {
		return ""
	}

	return kind.Parent.Kind
}
