// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

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

	out := response{http.StatusOK, s.toAPI(resource)}
	if condition == "" {
		return out, nil
	}

	// A condition that is valid alone cannot end the parentheses of the combined search below.
	if _, err := search.Parse(condition); err != nil {
		return response{}, newQueryError("search", err)
	}

	found, _, err := s.store.List(ctx, store.ListQuery{
		Search: "id = '" + canonicalID(target.id) + "' and (" + condition + ")", Page: 1, Size: 1,
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

	if err := s.checkKind(query.Kind); err != nil {
		return response{}, err
	}

	listQuery := store.ListQuery{
		Search: ptr.Deref(query.Search, ""), Order: ptr.Deref(query.Order, "created_time desc"), Page: ptr.Deref(query.Page, 1),
		Size: ptr.Deref(query.Size, 20), RefType: ptr.Deref(query.RefType, ""), RefTargetID: ptr.Deref(query.RefTargetId, ""),
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

	page := openapi.ResourceList{Items: make([]openapi.Resource, 0, len(found)), Page: listQuery.Page,
		Size: len(found), Total: total}
	for _, resource := range found {
		page.Items = append(page.Items, s.toAPI(resource))
	}

	if fields == nil {
		return response{http.StatusOK, page}, nil
	}

	items, err := toJSONValue(page.Items)
	if err != nil {
		return response{}, err
	}

	return response{http.StatusOK, map[string]any{
		"items": fields.selectFrom(items), "page": page.Page, "size": page.Size, "total": page.Total,
	}}, nil
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

	page, size := ptr.Deref(query.Page, 1), ptr.Deref(query.Size, 20)
	start := min((page-1)*size, len(found))
	items := append([]openapi.AdapterStatus{}, found[start:min(start+size, len(found))]...)

	return response{http.StatusOK, openapi.StatusList{Items: items, Page: page, Size: len(items), Total: len(found)}}, nil
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

	return response{http.StatusOK, out}, nil
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
