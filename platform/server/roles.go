// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/routers"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// AnyAdapter and anyValue stand for every name and every value.
const (
	AnyAdapter = "*"
	anyValue   = "*"

	// adapterLease begins the names of leases that are an adapter's own: adapter.NAME, or
	// adapter.NAME. and more.
	adapterLease = "adapter."
)

// caller is who sends a request.
type caller struct {
	// name stands in created_by and in the audit log.
	name string
	// all is true without tokens: everybody may do everything.
	all bool
	// roles, sorted, and the names that an adapter reports as.
	roles, adapters []string
	// claims of the token, and whether all of its roles are for all tenants.
	claims     map[string]any
	allTenants bool
}

// CheckRoles says what is wrong with the roles of a configuration with these issuers.
func CheckRoles(bindings []platform.RoleBinding, issuers []platform.Issuer) error {
	var wrong mistakes

	roles := []string{
		platform.RoleReader, platform.RoleWriter, platform.RoleAdapter, platform.RoleSentinel, platform.RoleAdmin,
	}

	for i, one := range bindings {
		at := fmt.Sprintf("roles[%d]: ", i)
		named := (len(one.Adapters) > 0) != (one.AdapterClaim != "")

		wrong.when(!slices.Contains(roles, one.Role), fmt.Sprintf("%srole %q: write %s", at, one.Role, strings.Join(roles, ", ")))
		known := slices.ContainsFunc(issuers, func(from platform.Issuer) bool { return from.IssuerURL == one.Issuer })

		wrong.when(one.Issuer != "" && !known, at+"issuer: it is none of server.jwt.configs")
		wrong.when(one.Issuer == "" && len(issuers) > 1, at+"issuer: say whose tokens are meant, there are several issuers")
		wrong.when(len(one.Values) == 0 || slices.Contains(one.Values, ""), at+"values: name those that the claim may have")
		wrong.when(one.Role == platform.RoleAdapter && !named, at+"role adapter: set adapters or adapter_claim, one of them")
		wrong.when(one.Role != platform.RoleAdapter && (len(one.Adapters) > 0 || one.AdapterClaim != ""),
			at+"adapters and adapter_claim go with role adapter")
		wrong.when(slices.Contains(one.Adapters, AnyAdapter), at+"adapters: name them, a caller does not report as any")
	}

	return errors.Join(wrong...)
}

// rolesOf gives what the claims of an issuer's token come to.
func (s *Server) rolesOf(issuer, name string, claims map[string]any) caller {
	out := caller{name: name, claims: claims, allTenants: true}

	for _, binding := range s.options.Roles {
		if binding.Issuer != "" && binding.Issuer != issuer {
			continue
		}

		given := []string{name}
		if binding.Claim != "" {
			given = valuesOf(claims, binding.Claim)
		}

		if !slices.ContainsFunc(given, func(value string) bool {
			return slices.Contains(binding.Values, value) || slices.Contains(binding.Values, anyValue)
		}) {
			continue
		}

		out.roles = append(out.roles, binding.Role)
		out.adapters = append(out.adapters, binding.Adapters...)
		// What one entry allows for one tenant is not for all because of another entry.
		out.allTenants = out.allTenants && binding.AllTenants

		if binding.AdapterClaim != "" {
			out.adapters = append(out.adapters, valuesOf(claims, binding.AdapterClaim)...)
		}
	}

	out.allTenants = out.allTenants && len(out.roles) > 0
	slices.Sort(out.roles)
	out.roles = slices.Compact(out.roles)

	return out
}

// valuesOf gives the texts of a claim: itself, or those of its list. A name with dots is a
// claim of that name, or leads into objects.
func valuesOf(claims map[string]any, name string) []string {
	value, there := claims[name]
	for key, rest, more := strings.Cut(name, "."); !there && more; key, rest, more = strings.Cut(rest, ".") {
		below, ok := claims[key].(map[string]any)
		if !ok {
			return nil
		}

		claims = below
		value, there = claims[rest]
	}

	switch typed := value.(type) {
	case string:
		return []string{typed}
	case []any:
		var out []string

		for _, one := range typed {
			if text, ok := one.(string); ok {
				out = append(out, text)
			}
		}

		return out
	default:
		return nil
	}
}

func (c caller) has(roles ...string) bool {
	return slices.ContainsFunc(roles, func(role string) bool { return slices.Contains(c.roles, role) })
}

// authorize says whether the caller's roles allow the request. Whether an adapter reports
// as itself is known when the report is read: mayReport.
func (s *Server) authorize(r *http.Request, route *routers.Route) error {
	who := about(r.Context()).caller
	needs := []string{platform.RoleWriter, platform.RoleAdmin}

	switch {
	case who.all:
		return nil
	case route.Method == http.MethodGet:
		if len(who.roles) == 0 {
			return problem(CodeForbidden, "no entry of roles fits the token")
		}

		return nil
	case strings.HasSuffix(route.Path, "/statuses"):
		needs = []string{platform.RoleAdapter}
	case strings.HasSuffix(route.Path, "/force-delete"):
		needs = []string{platform.RoleAdmin}
	case strings.HasPrefix(route.Path, "/leases/"):
		if who.holds(r.PathValue("name")) {
			return nil
		}

		needs = []string{platform.RoleSentinel}
	}

	if who.has(needs...) {
		return nil
	}

	return problem(CodeForbidden, "this is for the role %s", strings.Join(needs, " or "))
}

// holds says whether a lease is one of the caller's as an adapter.
func (c caller) holds(lease string) bool {
	name, ours := strings.CutPrefix(lease, adapterLease)
	name, _, _ = strings.Cut(name, ".")

	return ours && c.has(platform.RoleAdapter) && slices.Contains(c.adapters, name)
}

// mayReport says whether the caller may report as an adapter.
func (c caller) mayReport(adapter string) error {
	if c.all || slices.Contains(c.adapters, adapter) {
		return nil
	}

	return problem(CodeForbidden, "the token is not that of the adapter it reports as")
}
