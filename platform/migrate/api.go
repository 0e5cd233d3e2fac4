// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const (
	reasonPool    = "the pool of connections needs no tuning: connections are opened when they are needed and closed when idle"
	reasonMasking = "the log contains neither headers nor bodies, so nothing has to be masked"
	hintTLS       = "the health and metrics servers are plain HTTP: keep them inside the cluster, and set enabled: false"
	hintIssuer    = "grant the callers roles (roles[].claim and values), and remove the key"
)

// Upstream's defaults that differ from ours.
const (
	upstreamIdentityClaim = "email"
	upstreamStuckAfter    = "10m"
	upstreamSchemas       = "openapi/openapi.yaml"
)

func newAPIRules() rules {
	return rules{
		"server.hostname":            omit("links are relative", ""),
		"server.host":                ignore,
		"server.port":                ignore,
		"server.openapi_schema_path": rename("spec_schemas"),
		"server.timeouts.read":       omit("requests have fixed limits, see docs/reference/limits.md"),
		"server.timeouts.write":      omit("requests have fixed limits, see docs/reference/limits.md"),
		"server.tls":                 convertTLS,
		"server.jwt.enabled":         ignore,
		"server.jwt.configs":         convertIssuers,
		"server.tenant":              convertTenant,

		"database.dialect":            only("the database is PostgreSQL", "postgres"),
		"database.host":               ignore,
		"database.port":               ignore,
		"database.name":               ignore,
		"database.username":           ignore,
		"database.password":           ignore,
		"database.ssl.mode":           ignore,
		"database.ssl.root_cert_file": ignore,
		"database.debug":              omit("the log level debug includes the database", false),
		"database.pool":               convertPool,

		"logging.level":   rename("log.level"),
		"logging.format":  rename("log.format"),
		"logging.output":  only("the log goes to standard output", "stdout"),
		"logging.masking": omit(reasonMasking),

		"metrics.host":                             ignore,
		"metrics.port":                             ignore,
		"metrics.tls.enabled":                      only(hintTLS, false),
		"metrics.tls.cert_file":                    omit("see metrics.tls.enabled", ""),
		"metrics.tls.key_file":                     omit("see metrics.tls.enabled", ""),
		"metrics.label_metrics_inclusion_duration": omit("metrics have no labels of single resources"),
		"metrics.reconciliation_stuck_threshold":   rename("stuck_after"),

		"health.host":             ignore,
		"health.port":             ignore,
		"health.tls.enabled":      only(hintTLS, false),
		"health.tls.cert_file":    omit("see health.tls.enabled", ""),
		"health.tls.key_file":     omit("see health.tls.enabled", ""),
		"health.shutdown_timeout": omit("every program ends within 20 seconds of SIGTERM"),
		"health.db_ping_timeout":  omit("the readiness check has a fixed timeout"),

		"tracing.enabled": omit("traces are on if OTEL_EXPORTER_OTLP_ENDPOINT is set", false),

		"entities": convertEntities,
	}
}

func (c *conversion) convertAPI() {
	c.convert(newAPIRules())

	if !c.isInChart() {
		c.convertAddresses()
		c.convertDatabase()
	}

	c.convertAuthentication()

	if c.get("metrics.reconciliation_stuck_threshold", nil) == nil {
		c.set("stuck_after", upstreamStuckAfter)
	}
}

func (c *conversion) convertAddresses() {
	for _, address := range []struct {
		section, to, host string
		port              int
	}{
		{"server", "server.address", "localhost", 8000},
		{"health", "server.health_address", "localhost", 8080},
		{"metrics", "server.metrics_address", "localhost", 9090},
	} {
		host := fmt.Sprint(c.get(address.section+".host", address.host))
		if host == "0.0.0.0" {
			host = ""
		}

		c.set(address.to, net.JoinHostPort(host, fmt.Sprint(c.get(address.section+".port", address.port))))
	}
}

// isInChart reports whether the configuration is part of Helm values. The chart has addresses and the Secret with the
// URL of the database.
func (c *conversion) isInChart() bool { return len(c.prefix) > 0 }

// convertDatabase writes the connection URL into a note, because the URL contains a password, which belongs into a
// file of its own.
func (c *conversion) convertDatabase() {
	target := url.URL{
		Scheme: "postgres", Path: "/" + fmt.Sprint(c.get("database.name", "hyperfleet")),
		User: url.UserPassword(fmt.Sprint(c.get("database.username", "hyperfleet")), "PASSWORD"),
		Host: net.JoinHostPort(fmt.Sprint(c.get("database.host", "localhost")), fmt.Sprint(c.get("database.port", 5432))),
	}
	query := url.Values{"sslmode": {fmt.Sprint(c.get("database.ssl.mode", "disable"))}}

	if root := fmt.Sprint(c.get("database.ssl.root_cert_file", "")); root != "" {
		query.Set("sslrootcert", root)
	}

	target.RawQuery = query.Encode()
	c.set("database.url_file", "database-url")

	hint := "write this line into the file database-url beside the configuration: " + target.String()
	if c.get("database.password", nil) != nil {
		hint += " with the password of this file"
	}

	c.note(strictyaml.Path{"database"}, "the connection is in a file of its own", hint)
}

// convertAuthentication gives every caller with a valid token the permissions that upstream gives it.
func (c *conversion) convertAuthentication() {
	path := strictyaml.Path{"server", "jwt"}

	if c.get("server.jwt.enabled", true) == false {
		c.set("insecure_no_authentication", true)
		c.note(path, "every client that reaches the API has all permissions, as before", "configure issuers and roles")

		return
	}

	issuers, _ := c.get("server.jwt.configs", nil).([]any)
	if len(issuers) == 0 {
		c.addProblem(path, "authentication is enabled without an issuer", "set server.jwt.configs, or server.jwt.enabled: false")

		return
	}

	var roles []any

	for _, issuer := range issuers {
		fields, _ := issuer.(map[string]any)

		for _, role := range []string{platform.RoleAdmin, platform.RoleSentinel, platform.RoleAdapter} {
			binding := map[string]any{"role": role, "values": []any{"*"}}
			if len(issuers) > 1 {
				binding["issuer"] = fields["issuer_url"]
			}

			if role == platform.RoleAdapter {
				adapters := c.listAdapters()
				if len(adapters) == 0 {
					continue
				}

				binding["adapters"] = adapters
			}

			roles = append(roles, binding)
		}
	}

	c.set("roles", roles)
	c.note(path, "every caller with a valid token has all permissions, as before", "restrict values in roles")
}

func (c *conversion) listAdapters() []any {
	var names []string

	entities, _ := c.get("entities", nil).([]any)
	for _, entity := range entities {
		fields, _ := entity.(map[string]any)
		required, _ := fields["required_adapters"].([]any)

		for _, name := range required {
			names = append(names, fmt.Sprint(name))
		}
	}

	slices.Sort(names)

	out := make([]any, 0, len(names))
	for _, name := range slices.Compact(names) {
		out = append(out, name)
	}

	return out
}

func convertTLS(c *conversion, path strictyaml.Path, value any) {
	c.convertFields(path, value, rules{
		"enabled": ignore, "cert_file": ignore, "key_file": ignore,
	})

	if c.get("server.tls.enabled", false) == true {
		c.set("server.tls_cert_file", c.get("server.tls.cert_file", ""))
		c.set("server.tls_key_file", c.get("server.tls.key_file", ""))
	}
}

func convertPool(c *conversion, path strictyaml.Path, value any) {
	pool, _ := value.(map[string]any)
	if connections := pool["max_connections"]; connections != nil {
		c.set("database.max_connections", connections)
	}

	if len(pool) > 1 || pool["max_connections"] == nil {
		c.note(path, "only max_connections is converted: "+reasonPool, "")
	}
}

func convertTenant(c *conversion, path strictyaml.Path, value any) {
	c.convertFields(path, value, rules{
		"enabled": ignore, "system_header": ignore, "dimensions[].header": ignore, "dimensions[].key": ignore,
		"dimensions[].required": ignore,
	})

	tenant, _ := value.(map[string]any)
	if tenant["enabled"] != true {
		return
	}

	delete(tenant, "enabled")
	c.set("server.tenant", tenant)
}

func convertIssuers(c *conversion, path strictyaml.Path, value any) {
	if c.get("server.jwt.enabled", true) == false {
		return
	}

	issuers, _ := value.([]any)
	out := make([]any, 0, len(issuers))

	for i, issuer := range issuers {
		at := path.Append(i)
		converted := map[string]any{"identity_claim": upstreamIdentityClaim}
		copied := func(_ *conversion, from strictyaml.Path, field any) {
			converted[fmt.Sprint(from[len(from)-1])] = field
		}
		c.convertFields(at, issuer, rules{
			"issuer_url": copied, "jwk_cert_url": copied, "jwk_cert_file": copied, "jwk_cert_ca_file": copied,
			"header": copied, "audience": copied, "identity_claim": copied,
			"identity_claim_pattern": only(hintIssuer, ""),
			"identity_header":        only("the caller's name is always a claim of its token", ""),
		})
		out = append(out, converted)
	}

	c.set("server.jwt.configs", out)
}

// convertEntities keeps the entities, whose fields have the same names.
func convertEntities(c *conversion, path strictyaml.Path, value any) {
	needsSchemas := false
	c.convertFields(path, value, rules{
		"[].kind": ignore, "[].plural": ignore, "[].parent_kind": ignore, "[].on_parent_delete": ignore,
		"[].required_adapters": ignore, "[].name_min_len": ignore, "[].name_max_len": ignore,
		"[].spec_schema_name":    func(*conversion, strictyaml.Path, any) { needsSchemas = true },
		"[].require_spec_schema": ignore, "[].references[].ref_type": ignore, "[].references[].target_kind": ignore,
		"[].references[].min": ignore, "[].references[].max": ignore,
	})
	c.set("entities", value)

	if needsSchemas && c.get("server.openapi_schema_path", nil) == nil {
		c.set("spec_schemas", upstreamSchemas)
		c.note(path, "the schemas of specs are in "+upstreamSchemas, "copy upstream's document there, beside the configuration")
	}
}

// convertFields applies rules to the fields of a value. Their paths begin at the value.
func (c *conversion) convertFields(path strictyaml.Path, value any, fields rules) {
	full := rules{}

	for key, apply := range fields {
		prefix := pattern(path)
		separator := "."

		if strings.HasPrefix(key, "[") {
			separator = ""
		}

		full[prefix+separator+key] = apply
	}

	c.walk(full, path, value)
}
