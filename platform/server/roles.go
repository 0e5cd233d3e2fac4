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

// AnyAdapter and anyValue match every name and every value.
const (
	AnyAdapter = "*"
	anyValue   = "*"

	// adapterLeasePrefix is the prefix of the names of leases that belong to an adapter. They have
	// the form adapter.NAME, optionally followed by a dot and more text.
	adapterLeasePrefix = "adapter."
)

type caller struct {
	// name is stored in created_by and in the audit log.
	name string
	// isUnrestricted is true if the API has no issuers. The caller then has all permissions.
	isUnrestricted bool
	// roles are the caller's roles, sorted. adapters are the names under which the caller may report.
	roles, adapters []string
	// claims are the token's claims. hasAllTenants is true if each of the caller's roles is for all
	// tenants.
	claims        map[string]any
	hasAllTenants bool
}

// ValidateRoles returns all problems of the roles in a configuration. issuers are the issuers in the same configuration.
func ValidateRoles(bindings []platform.RoleBinding, issuers []platform.Issuer) error {
	var problems configErrors

	roles := []string{
		platform.RoleReader, platform.RoleWriter, platform.RoleAdapter, platform.RoleSentinel, platform.RoleAdmin,
	}

	for i, binding := range bindings {
		path := fmt.Sprintf("roles[%d]: ", i)
		hasAdapters := (len(binding.Adapters) > 0) != (binding.AdapterClaim != "")

		problems.addIf(!slices.Contains(roles, binding.Role),
			fmt.Sprintf("%srole %q: write %s", path, binding.Role, strings.Join(roles, ", ")))
		isKnownIssuer := slices.ContainsFunc(issuers, func(from platform.Issuer) bool { return from.IssuerURL == binding.Issuer })

		problems.addIf(binding.Issuer != "" && !isKnownIssuer, path+"issuer: it is not in server.jwt.configs")
		problems.addIf(binding.Issuer == "" && len(issuers) > 1, path+"issuer: set it, because there are several issuers")
		problems.addIf(len(binding.Values) == 0 || slices.Contains(binding.Values, ""),
			path+"values: list the values of the claim that get the role")
		problems.addIf(binding.Role == platform.RoleAdapter && !hasAdapters,
			path+"role adapter: set either adapters or adapter_claim")
		problems.addIf(binding.Role != platform.RoleAdapter && (len(binding.Adapters) > 0 || binding.AdapterClaim != ""),
			path+"adapters and adapter_claim are only allowed with role adapter")
		problems.addIf(slices.Contains(binding.Adapters, AnyAdapter),
			path+"adapters: list their names, because a caller cannot report as any adapter")
	}

	return errors.Join(problems...)
}

// newCaller returns the caller with the roles that the claims of an issuer's token give.
func (s *Server) newCaller(issuer, name string, claims map[string]any) caller {
	out := caller{name: name, claims: claims, hasAllTenants: true}

	for _, binding := range s.options.Roles {
		if binding.Issuer != "" && binding.Issuer != issuer {
			continue
		}

		values := []string{name}
		if binding.Claim != "" {
			values = claimValues(claims, binding.Claim)
		}

		if !slices.ContainsFunc(values, func(value string) bool {
			return slices.Contains(binding.Values, value) || slices.Contains(binding.Values, anyValue)
		}) {
			continue
		}

		out.roles = append(out.roles, binding.Role)
		out.adapters = append(out.adapters, binding.Adapters...)
		// If one entry is for one tenant only, another entry must not extend it to all tenants.
		out.hasAllTenants = out.hasAllTenants && binding.AllTenants

		if binding.AdapterClaim != "" {
			out.adapters = append(out.adapters, claimValues(claims, binding.AdapterClaim)...)
		}
	}

	out.hasAllTenants = out.hasAllTenants && len(out.roles) > 0
	slices.Sort(out.roles)
	out.roles = slices.Compact(out.roles)

	return out
}

// claimValues returns the string of a claim, or the strings of its list. A name with dots, such as a.b.c, is the claim of
// this name, or else the field b.c of the claim a, or else the field c of the field b of the claim a.
func claimValues(claims map[string]any, name string) []string {
	value, found := claims[name]
	for key, rest, hasRest := strings.Cut(name, "."); !found && hasRest; key, rest, hasRest = strings.Cut(rest, ".") {
		object, ok := claims[key].(map[string]any)
		if !ok {
			return nil
		}

		claims = object
		value, found = claims[rest]
	}

	switch typed := value.(type) {
	case string:
		return []string{typed}
	case []any:
		var out []string

		for _, item := range typed {
			if text, ok := item.(string); ok {
				out = append(out, text)
			}
		}

		return out
	default:
		return nil
	}
}

func (c caller) hasRole(roles ...string) bool {
	return slices.ContainsFunc(roles, func(role string) bool { return slices.Contains(c.roles, role) })
}

// authorize returns an error if the caller has none of the roles that the operation requires. Whether an adapter
// reports under its own name is checked later by authorizeReport, because it depends on the body.
func authorize(r *http.Request, route *routers.Route, roles []string) error {
	caller := requestFromContext(r.Context()).caller

	switch {
	case caller.isUnrestricted:
		return nil
	case route.Method == http.MethodGet && len(caller.roles) == 0:
		return newProblem(CodeForbidden, "no entry in roles matches the token")
	case route.Method == http.MethodGet, caller.hasRole(roles...):
		return nil
	case route.Operation.OperationID == operationPutLease && caller.ownsLease(r.PathValue("name")):
		return nil
	default:
		return newProblem(CodeForbidden, "this requires the role %s", strings.Join(roles, " or "))
	}
}

// ownsLease returns true if the caller may use a lease because it belongs to one of the caller's
// adapters.
func (c caller) ownsLease(lease string) bool {
	name, isAdapterLease := strings.CutPrefix(lease, adapterLeasePrefix)
	name, _, _ = strings.Cut(name, ".")

	return isAdapterLease && c.hasRole(platform.RoleAdapter) && slices.Contains(c.adapters, name)
}

func (c caller) authorizeReport(adapter string) error {
	if c.isUnrestricted || slices.Contains(c.adapters, adapter) {
		return nil
	}

	return newProblem(CodeForbidden, "the token does not allow reports as this adapter")
}
