// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/server"
)

// New returns the command `hyperfleet-platform api`.
func New() *cobra.Command {
	spec := newSpec()

	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve the fleet API, which stores desired state and the statuses that adapters report",
		Long: `Serve the fleet API with a PostgreSQL database. The API migrates the database schema at start.
You can run any number of replicas. docs/reference/fleet-api.md describes the configuration.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.NewWatcher(spec.FilePath(cmd.Flags()), func() error { return spec.Check(cmd.Flags()) })

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			return run(cmd.Context(), *config, files, cmd.ErrOrStderr())
		},
	}
	cmd.SetContext(context.Background())

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration has a duplicate key; the tests find this
	}

	settings, err := spec.NewCommand()
	if err != nil {
		panic(err) // as above
	}

	cmd.AddCommand(settings)

	return cmd
}

// Defaults returns the configuration without file, environment variables and flags.
func Defaults() platform.API {
	return platform.API{
		Server:   platform.Server{Address: ":8000", HealthAddress: ":8080", MetricsAddress: ":9090"},
		Database: platform.Database{QueryTimeout: 10 * time.Second},
		// The default entities have no required adapters.
		Entities: []platform.Entity{
			{Kind: "Cluster", Plural: "clusters", NameMinLen: 3, NameMaxLen: 53},
			{
				Kind: "NodePool", Plural: "nodepools", ParentKind: "Cluster", OnParentDelete: entity.Cascade,
				NameMinLen: 3, NameMaxLen: 15,
			},
		},
		StuckAfter:  30 * time.Minute,
		ChangesKept: 24 * time.Hour,
		Log:         platform.Log{Level: "info", Format: "json"},
	}
}

// CheckText returns the problems of a configuration, without environment and flags.
func CheckText(file string, text []byte) strictyaml.Problems { return newSpec().CheckText(file, text) }

func newSpec() *strictyaml.Spec[platform.API] {
	return &strictyaml.Spec[platform.API]{
		Default: Defaults(),
		EnvFile: "HYPERFLEET_API_CONFIG",
		Aliases: map[string]string{"log.level": log.EnvLevel},
		Help: map[string]string{
			"server.address":              "address on which the API listens",
			"database.url_file":           "file with the URL of the database",
			"insecure_no_authentication":  "serve all clients without server.jwt",
			"stuck_after":                 "time after which an unreconciled resource counts as stuck",
			"changes_kept":                "retention time of the change feed",
			"adapters":                    "adapters that may report on every kind",
			"spec_schemas":                "OpenAPI document with the schemas of specs",
			"server.tenant.system_header": "header of requests that can access the resources of all tenants",
			"server.tls_key_file":         "private key of the certificate; with a certificate, the API serves HTTPS",
		},
		Validate: validate,
	}
}

func validate(c *platform.API) error {
	var e strictyaml.KeyErrors

	e.Requiref(c.Server.Address != "", "server.address", "set the address on which the API listens")
	e.Requiref((c.Server.TLSCertFile == "") == (c.Server.TLSKeyFile == ""), "server.tls_cert_file",
		"set both this key and tls_key_file, or neither")
	e.Requiref(c.Database.URLFile != "", "database.url_file", "set the path of the file with the database URL")
	e.Requiref(c.Database.MaxConnections >= 0, "database.max_connections", "must be 0 or more")
	e.Requiref(c.Database.QueryTimeout > 0, "database.query_timeout", "must be above 0")
	e.Requiref(c.StuckAfter > 0, "stuck_after", "must be above 0")
	e.Requiref(c.ChangesKept > 0, "changes_kept", "must be above 0")

	issuers := c.Server.JWT.Configs
	hasTokens := len(issuers) > 0

	e.Requiref(hasTokens || len(c.Roles) == 0, "roles", "roles match the claims of tokens: set server.jwt.configs")
	e.Requiref(hasTokens || c.InsecureNoAuthentication || isLoopback(c.Server.Address), "server.address",
		"without server.jwt, every client that reaches this address has all permissions: set server.jwt.configs, "+
			"listen on 127.0.0.1, or set insecure_no_authentication: true")
	e.Requiref(!hasTokens || !c.InsecureNoAuthentication, "insecure_no_authentication", "cannot be used with server.jwt")
	e.Requiref(!hasTokens || len(c.Roles) > 0, "roles", "set at least one role: without roles, tokens have no permissions")
	e.Add(server.ValidateIssuers(issuers), "server", "jwt", "configs")
	e.Add(server.ValidateTenant(c.Server.Tenant, hasTokens), "server", "tenant")
	e.Add(server.ValidateRoles(c.Roles, issuers), "roles")

	_, err := log.ParseLevel(c.Log.Level)
	e.Add(err, "log", "level")

	_, err = log.ParseFormat(c.Log.Format)
	e.Add(err, "log", "format")

	schemas, err := entity.LoadSchemas(context.Background(), c.SpecSchemas)
	e.Add(err, "spec_schemas")
	e.Add(server.ValidateEntities(c.Entities, schemas), "entities")

	return e.Err()
}

// isLoopback reports whether only processes on this machine can reach an address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	ip := net.ParseIP(host)

	return host == "localhost" || ip != nil && ip.IsLoopback()
}
