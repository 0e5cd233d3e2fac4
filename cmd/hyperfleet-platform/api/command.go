// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/mounted"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/server"
)

// New makes the command.
func New() *cobra.Command {
	spec := spec()

	cmd := &cobra.Command{
		Use:   "api",
		Short: "Serve the fleet API: desired state, and what adapters report of it",
		Long: `Serve the fleet API over a Postgres database, whose schema it brings up to date by itself.
Any number of replicas may run. docs/reference/fleet-api.md has the configuration.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.Beside(spec.File(cmd.Flags()), func() error { return spec.Check(cmd.Flags()) })

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return err
			}

			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()

			return run(ctx, *config, files, cmd.ErrOrStderr())
		},
	}
	cmd.SetContext(context.Background())

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration has two keys of one name: tests make the command
	}

	settings, err := spec.Command()
	if err != nil {
		panic(err) // as above
	}

	cmd.AddCommand(settings)

	return cmd
}

// Defaults is the configuration without file, environment and flags.
func Defaults() platform.API {
	return platform.API{
		Server:   platform.Server{Address: ":8000", HealthAddress: ":8080", MetricsAddress: ":9090"},
		Database: platform.Database{QueryTimeout: 10 * time.Second},
		// Without entities in the file there are these two, which no adapter has to
		// reconcile yet.
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

func spec() *strictyaml.Spec[platform.API] {
	return &strictyaml.Spec[platform.API]{
		Default: Defaults(),
		EnvFile: "HYPERFLEET_API_CONFIG",
		Aliases: map[string]string{"log.level": log.EnvLevel},
		Help: map[string]string{
			"server.address":              "where the API listens",
			"database.url_file":           "file with the URL of the database",
			"insecure_no_authentication":  "listen for everybody without server.jwt",
			"stuck_after":                 "when a resource that is not reconciled counts as stuck",
			"changes_kept":                "for how long the change feed goes back",
			"adapters":                    "adapters that may report on every kind",
			"spec_schemas":                "OpenAPI document with the schemas of specs",
			"server.tenant.system_header": "header of requests that see all tenants' resources",
			"server.tls_key_file":         "key of the certificate; with it the API speaks HTTPS",
		},
		Validate: validate,
	}
}

func validate(c *platform.API) error {
	var errs []error

	wrong := func(bad bool, key, text string) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}
	wrong(c.Server.Address == "", "server.address", "say where the API listens")
	wrong((c.Server.TLSCertFile == "") != (c.Server.TLSKeyFile == ""), "server.tls_cert_file", "goes together with tls_key_file")
	wrong(c.Database.URLFile == "", "database.url_file", "name the file with the URL of the database")
	wrong(c.Database.MaxConnections < 0, "database.max_connections", "0 or more")
	wrong(c.Database.QueryTimeout <= 0, "database.query_timeout", "a duration above 0")
	wrong(c.StuckAfter <= 0, "stuck_after", "a duration above 0")
	wrong(c.ChangesKept <= 0, "changes_kept", "a duration above 0")
	errs = append(errs, validateCallers(c)...)

	if _, err := log.ParseLevel(c.Log.Level); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.level", "%w", err))
	}

	if _, err := log.ParseFormat(c.Log.Format); err != nil {
		errs = append(errs, strictyaml.ErrorAt("log.format", "%w", err))
	}

	schemas, err := entity.LoadSchemas(context.Background(), c.SpecSchemas)
	if err != nil {
		errs = append(errs, strictyaml.ErrorAt("spec_schemas", "%w", err))
	}

	if err := server.CheckEntities(c.Entities, schemas); err != nil {
		errs = append(errs, strictyaml.ErrorAt("entities", "%w", err))
	}

	return errors.Join(errs...)
}

// validateCallers says what is wrong with who may do what.
func validateCallers(c *platform.API) []error {
	var errs []error

	wrong := func(bad bool, key, text string) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}
	issuers := c.Server.JWT.Configs
	tokens := len(issuers) > 0

	wrong(!tokens && len(c.Roles) > 0, "roles", "they go by the claims of tokens: set server.jwt.configs")
	wrong(!tokens && !c.InsecureNoAuthentication && !loopback(c.Server.Address), "server.address",
		"without server.jwt everybody who reaches it may do everything: set server.jwt.configs, listen on 127.0.0.1, "+
			"or say insecure_no_authentication: true")
	wrong(tokens && c.InsecureNoAuthentication, "insecure_no_authentication", "does not go with server.jwt")
	wrong(tokens && len(c.Roles) == 0, "roles", "say what tokens may do: without roles they may do nothing")

	for _, one := range []struct {
		key string
		err error
	}{
		{"server.jwt.configs", server.CheckIssuers(issuers)},
		{"server.tenant", server.CheckTenant(c.Server.Tenant, tokens)},
		{"roles", server.CheckRoles(c.Roles, issuers)},
	} {
		if one.err != nil {
			errs = append(errs, strictyaml.ErrorAt(one.key, "%w", one.err))
		}
	}

	return errs
}

// loopback says whether an address is reached from this machine alone.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	ip := net.ParseIP(host)

	return host == "localhost" || ip != nil && ip.IsLoopback()
}
