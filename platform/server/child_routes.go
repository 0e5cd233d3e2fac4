// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import "context"

// Resources below their parent.

// ListChildren answers a page of them.
func (s *Server) ListChildren(ctx context.Context, in ListChildrenRequestObject) (ListChildrenResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, "")
	if err != nil {
		return nil, err
	}

	return s.list(ctx, at, listQuery{
		Page: in.Params.Page, Size: in.Params.Size, Order: in.Params.Order, Search: in.Params.Search,
		Fields: in.Params.Fields, RefType: in.Params.RefType, RefTargetId: in.Params.RefTargetId,
	})
}

// CreateChild makes one.
func (s *Server) CreateChild(ctx context.Context, in CreateChildRequestObject) (CreateChildResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, "")
	if err != nil {
		return nil, err
	}

	return s.create(ctx, at, *in.Body)
}

// GetChild answers one.
func (s *Server) GetChild(ctx context.Context, in GetChildRequestObject) (GetChildResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.get(ctx, at)
}

// PatchChild changes one.
func (s *Server) PatchChild(ctx context.Context, in PatchChildRequestObject) (PatchChildResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.patch(ctx, at, *in.Body)
}

// DeleteChild asks for the deletion of one.
func (s *Server) DeleteChild(ctx context.Context, in DeleteChildRequestObject) (DeleteChildResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.remove(ctx, at)
}

// ForceDeleteChild removes one that is being deleted.
func (s *Server) ForceDeleteChild(
	ctx context.Context, in ForceDeleteChildRequestObject,
) (ForceDeleteChildResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.forceDelete(ctx, at, in.Body.Reason)
}

// ListChildStatuses answers the reports on one.
func (s *Server) ListChildStatuses(
	ctx context.Context, in ListChildStatusesRequestObject,
) (ListChildStatusesResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.statuses(ctx, at)
}

// PutChildStatus takes a report on one.
func (s *Server) PutChildStatus(
	ctx context.Context, in PutChildStatusRequestObject,
) (PutChildStatusResponseObject, error) {
	at, err := s.scopeOf(in.Plural, in.Id, in.Children, in.ChildID)
	if err != nil {
		return nil, err
	}

	return s.report(ctx, at, *in.Body)
}
