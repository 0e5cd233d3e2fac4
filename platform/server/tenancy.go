// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// maxTenantLength is the maximum length of the value of one dimension.
const maxTenantLength = 256

// ValidateTenant returns all problems of the dimensions in a configuration. hasTokens is true if requests must have tokens,
// which dimensions with a claim need.
func ValidateTenant(tenant platform.Tenant, hasTokens bool) error {
	if len(tenant.Dimensions) == 0 {
		if tenant.SystemHeader != "" {
			return errors.New("system_header: it has no effect without dimensions")
		}

		return nil
	}

	var problems configErrors

	hasRequired, hasClaim := false, false
	keys := map[string]bool{}
	headers := map[string]bool{strings.ToLower(tenant.SystemHeader): true, strings.ToLower(authorization): true}

	for i, dimension := range tenant.Dimensions {
		path := fmt.Sprintf("dimensions[%d]: ", i)

		problems.addIf(dimension.Key == "" || keys[dimension.Key], path+"key: set a unique name")
		problems.addIf((dimension.Claim == "") == (dimension.Header == ""), path+"set either claim or header")
		problems.addIf(dimension.Claim != "" && !hasTokens, path+"claim: tokens are required for it: set server.jwt")
		problems.addIf(dimension.Header != "" && headers[strings.ToLower(dimension.Header)], path+"header: it is already used")

		hasRequired, hasClaim = hasRequired || dimension.Required, hasClaim || dimension.Claim != ""
		keys[dimension.Key], headers[strings.ToLower(dimension.Header)] = true, true
	}

	problems.addIf(!hasRequired, "dimensions: make at least one of them required: otherwise a request without a tenant sees all")
	problems.addIf(hasClaim && tenant.SystemHeader != "",
		"system_header: the header would override the tenant in the token: set all_tenants in a role instead")

	return errors.Join(problems...)
}

// resolveTenancy returns the tenant of a request. An empty result means that the request sees all
// resources.
func (s *Server) resolveTenancy(r *http.Request, caller caller) (map[string]string, error) {
	out := map[string]string{}

	system := s.options.Tenant.SystemHeader
	if caller.hasAllTenants || system != "" && r.Header.Get(system) != "" {
		return out, nil
	}

	for _, dimension := range s.options.Tenant.Dimensions {
		values, source := r.Header.Values(dimension.Header), "header "+dimension.Header
		if dimension.Claim != "" {
			values, source = claimValues(caller.claims, dimension.Claim), "claim "+dimension.Claim
		}

		switch {
		case len(values) > 1 || len(values) == 1 && (len(values[0]) > maxTenantLength || !utf8.ValidString(values[0])):
			return nil, newProblem(CodeForbidden, "%s has to name one tenant", source)
		case len(values) == 1 && values[0] != "":
			out[dimension.Key] = values[0]
		case dimension.Required:
			return nil, newProblem(CodeForbidden, "%s is missing: it has to name the tenant", source)
		}
	}

	return out, nil
}

// isVisible returns true if the request may see the resource. A request of a tenant sees only the
// resources of that tenant.
func isVisible(ctx context.Context, r store.Resource) bool {
	for name, value := range requestFromContext(ctx).tenancy {
		if r.Tenancy[name] != value {
			return false
		}
	}

	return true
}

// checkVisible returns the same error for references to resources that the request may not see as
// for missing resources.
func (u *requestTx) checkVisible(ctx context.Context, references map[string][]store.Ref) error {
	if len(requestFromContext(ctx).tenancy) == 0 {
		return nil
	}

	for refType, targets := range references {
		for _, ref := range targets {
			target, err := u.tx.Get(ctx, ref.ID)

			switch {
			case errors.Is(err, store.ErrNotFound), err == nil && !isVisible(ctx, target):
				return &store.TargetError{Type: refType, ID: ref.ID, Problem: store.TargetMissing}
			case err != nil:
				return err
			}
		}
	}

	return nil
}
