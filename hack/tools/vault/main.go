// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command test-vault runs the core of Vault with the auth methods jwt and cert and the secrets engine kv, which
// the tests of HyperFleet use. It stores all data in memory. The command is in a separate module and used only in
// tests. No program of HyperFleet imports or contains Vault.
//
// When it is ready, it prints one line of JSON: {"address": "https://127.0.0.1:8200", "rootToken": "..."}.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	jwtauth "github.com/hashicorp/vault-plugin-auth-jwt"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/cert"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve on")
	certFile := flag.String("tls-cert", "", "PEM file with the certificate; without a certificate, the server uses plain HTTP")
	keyFile := flag.String("tls-key", "", "PEM file with the private key of the certificate")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	if err := run(ctx, *listen, *certFile, *keyFile); err != nil {
		fmt.Fprintln(os.Stderr, "test-vault:", err)
		os.Exit(1) //nolint:gocritic // no cleanup is needed
	}
}

// run serves until ctx is done.
func run(ctx context.Context, listen, certFile, keyFile string) error {
	log := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Info})

	core, err := newCore(log)
	if err != nil {
		return fmt.Errorf("create core: %w", err)
	}

	token, err := initialize(ctx, core)
	if err != nil {
		return fmt.Errorf("initialize core: %w", err)
	}

	listener, scheme, err := openListener(ctx, listen, certFile, keyFile)
	if err != nil {
		return err
	}

	server := &http.Server{
		Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{
			Core: core, ListenerConfig: &configutil.Listener{MaxRequestSize: vaulthttp.DefaultMaxRequestSize},
		}),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.StandardLogger(nil),
	}

	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()

	ready := map[string]string{"address": scheme + "://" + listener.Addr().String(), "rootToken": token}
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return fmt.Errorf("print the address: %w", err)
	}

	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}

	return core.Shutdown()
}

func newCore(log hclog.Logger) (*vault.Core, error) {
	store, err := inmem.NewInmem(nil, log)
	if err != nil {
		return nil, fmt.Errorf("create storage: %w", err)
	}

	return vault.NewCore(&vault.CoreConfig{
		Physical:           store,
		Logger:             log,
		DisableMlock:       true,
		BuiltinRegistry:    noPlugins{},
		CredentialBackends: map[string]logical.Factory{"jwt": jwtauth.Factory, "cert": cert.Factory},
		LogicalBackends:    map[string]logical.Factory{"kv": kv.Factory},
	})
}

// initialize initializes and unseals a new core, and returns its root token.
func initialize(ctx context.Context, core *vault.Core) (string, error) {
	result, err := core.Initialize(ctx, &vault.InitParams{
		BarrierConfig: &vault.SealConfig{SecretShares: 1, SecretThreshold: 1},
	})
	if err != nil {
		return "", fmt.Errorf("initialize: %w", err)
	}

	for _, share := range result.SecretShares {
		if _, err := core.Unseal(share); err != nil {
			return "", fmt.Errorf("unseal: %w", err)
		}
	}

	return result.RootToken, nil
}

// openListener listens on the address and returns the listener and its URL scheme. With TLS, the server requests a
// client certificate for the auth method cert. Vault itself verifies this certificate.
func openListener(ctx context.Context, address, certFile, keyFile string) (listener net.Listener, scheme string, err error) {
	listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, "", fmt.Errorf("listen: %w", err)
	}

	if certFile == "" && keyFile == "" {
		return listener, "http", nil
	}

	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		_ = listener.Close()

		return nil, "", fmt.Errorf("read certificate: %w", err)
	}

	return tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	}), "https", nil
}

// noPlugins is an empty plugin registry, because all backends are linked into the program.
type noPlugins struct{}

func (noPlugins) Contains(string, consts.PluginType) bool { return false }

func (noPlugins) Get(string, consts.PluginType) (func() (any, error), bool) { return nil, false }

func (noPlugins) Keys(consts.PluginType) []string { return nil }

func (noPlugins) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Unknown, false
}

func (noPlugins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }
