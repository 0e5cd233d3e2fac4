// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// maxTenant bounds the value of one dimension.
const maxTenant = 256

// CheckTenant says what is wrong with the dimensions of a configuration, with tokens or
// without.
func CheckTenant(tenant platform.Tenant, tokens bool) error {
	if len(tenant.Dimensions) == 0 {
		if tenant.SystemHeader != "" {
			return errors.New("system_header: it says nothing without dimensions")
		}

		return nil
	}

	var wrong mistakes

	required, claims := false, false
	keys := map[string]bool{}
	headers := map[string]bool{strings.ToLower(tenant.SystemHeader): true, strings.ToLower(authorization): true}

	for i, one := range tenant.Dimensions {
		at := fmt.Sprintf("dimensions[%d]: ", i)

		wrong.when(one.Key == "" || keys[one.Key], at+"key: give each a name of its own")
		wrong.when((one.Claim == "") == (one.Header == ""), at+"set claim or header, one of them")
		wrong.when(one.Claim != "" && !tokens, at+"claim: it is one of a token, set server.jwt")
		wrong.when(one.Header != "" && headers[strings.ToLower(one.Header)], at+"header: it is another's")

		required, claims = required || one.Required, claims || one.Claim != ""
		keys[one.Key], headers[strings.ToLower(one.Header)] = true, true
	}

	wrong.when(!required, "dimensions: one has to be required, or a request that names no tenant sees all")
	wrong.when(claims && tenant.SystemHeader != "",
		"system_header: a token names the tenant, which a header would undo; give a role all_tenants")

	return errors.Join(wrong...)
}

// tenancyOf is the tenant that a request is of; empty is one that sees all.
func (s *Server) tenancyOf(r *http.Request, who caller) (map[string]string, error) {
	out := map[string]string{}

	system := s.options.Tenant.SystemHeader
	if who.allTenants || system != "" && r.Header.Get(system) != "" {
		return out, nil
	}

	for _, one := range s.options.Tenant.Dimensions {
		given, what := r.Header.Values(one.Header), "header "+one.Header
		if one.Claim != "" {
			given, what = valuesOf(who.claims, one.Claim), "claim "+one.Claim
		}

		switch {
		case len(given) > 1 || len(given) == 1 && len(given[0]) > maxTenant:
			return nil, problem(CodeForbidden, "%s has to name one tenant", what)
		case len(given) == 1 && given[0] != "":
			out[one.Key] = given[0]
		case one.Required:
			return nil, problem(CodeForbidden, "there is no %s, which says whose the request is", what)
		}
	}

	return out, nil
}

// visible tells whether a request sees the resource: one of a tenant sees that tenant's
// alone.
func visible(ctx context.Context, r store.Resource) bool {
	for name, value := range about(ctx).tenancy {
		if r.Tenancy[name] != value {
			return false
		}
	}

	return true
}

// checkVisible refuses references to what the request does not see, as to what is not
// there.
func (u *requestTx) checkVisible(ctx context.Context, references map[string][]store.Ref) error {
	if len(about(ctx).tenancy) == 0 {
		return nil
	}

	for refType, targets := range references {
		for _, ref := range targets {
			target, err := u.tx.Get(ctx, ref.ID)

			switch {
			case errors.Is(err, store.ErrNotFound), err == nil && !visible(ctx, target):
				return &store.TargetError{Type: refType, ID: ref.ID, Problem: store.TargetMissing}
			case err != nil:
				return err
			}
		}
	}

	return nil
}
