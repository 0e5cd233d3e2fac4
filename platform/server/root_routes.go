// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import "context"

// Resources of any kind.

// ListResources answers a page of them.
func (s *Server) ListResources(
	ctx context.Context, in ListResourcesRequestObject,
) (ListResourcesResponseObject, error) {
	return s.list(ctx, scope{}, listQuery(in.Params))
}

// CreateResource makes one.
func (s *Server) CreateResource(
	ctx context.Context, in CreateResourceRequestObject,
) (CreateResourceResponseObject, error) {
	return s.create(ctx, scope{}, *in.Body)
}

// GetResource answers one.
func (s *Server) GetResource(ctx context.Context, in GetResourceRequestObject) (GetResourceResponseObject, error) {
	return s.get(ctx, scope{id: canonical(in.Id)})
}

// PatchResource changes one.
func (s *Server) PatchResource(
	ctx context.Context, in PatchResourceRequestObject,
) (PatchResourceResponseObject, error) {
	return s.patch(ctx, scope{id: canonical(in.Id)}, *in.Body)
}

// DeleteResource asks for the deletion of one.
func (s *Server) DeleteResource(
	ctx context.Context, in DeleteResourceRequestObject,
) (DeleteResourceResponseObject, error) {
	return s.remove(ctx, scope{id: canonical(in.Id)})
}

// ForceDeleteResource removes one that is being deleted.
func (s *Server) ForceDeleteResource(
	ctx context.Context, in ForceDeleteResourceRequestObject,
) (ForceDeleteResourceResponseObject, error) {
	return s.forceDelete(ctx, scope{id: canonical(in.Id)}, in.Body.Reason)
}

// ListResourceStatuses answers the reports on one.
func (s *Server) ListResourceStatuses(
	ctx context.Context, in ListResourceStatusesRequestObject,
) (ListResourceStatusesResponseObject, error) {
	return s.statuses(ctx, scope{id: canonical(in.Id)})
}

// PutResourceStatus takes a report on one.
func (s *Server) PutResourceStatus(
	ctx context.Context, in PutResourceStatusRequestObject,
) (PutResourceStatusResponseObject, error) {
	return s.report(ctx, scope{id: canonical(in.Id)}, *in.Body)
}
