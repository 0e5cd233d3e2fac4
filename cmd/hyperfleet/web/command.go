// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
)

const (
	defaultAddress = "127.0.0.1:8088"
	// Limits of a connection. shutdownTimeout is the time that open requests have to complete after an
	// interrupt.
	headerTimeout   = 10 * time.Second
	writeTimeout    = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	maxHeader       = 32 << 10
	shutdownTimeout = 5 * time.Second
)

// options holds the flags of the command.
type options struct {
	cli.Kube

	address string
	hosts   []string
}

func (o *options) validate() error {
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return cli.Usagef("web: --bind-address %q: give host:port, such as %s", o.address, defaultAddress)
	}

	// Every host name except localhost counts as reachable from other machines.
	addr, _ := netip.ParseAddr(host)
	if !addr.IsLoopback() && host != "localhost" && len(o.hosts) == 0 {
		return cli.Usagef("web: --bind-address %s is reachable from other machines, and the pages have no authentication: "+
			"run the command behind a proxy that authenticates users, and give the host name of the proxy with --host", o.address)
	}

	return nil
}

// New returns the command `hyperfleet web`.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "web",
		Short: "Serve web pages with pools, jobs, machines and hypervisors on this machine",
		Long: `Serve web pages that show what the operator does: the waiting jobs and their causes, each pool, job and
machine, the hypervisors with their nodes, the hosts and the bridges. By default only this machine
can open the pages. The pages show what your kubeconfig permits you to read, change nothing, and load
nothing from the internet.

The pages have no authentication: anyone who can connect to the address sees everything that you can
see. To share the pages, run the command behind a proxy that authenticates users, and give the host
name of the proxy with --host.

The exit code is 0 after an interrupt; 1 if the API server does not respond or the address is in use;
2 if the command line is invalid.`,
		Example: "  hyperfleet web\n  hyperfleet web -n ci --bind-address 127.0.0.1:9000\n" +
			"  hyperfleet web --bind-address :8088 --host fleet.example.com",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return err
			}

			return run(cmd, opts)
		},
	}
	flags := cmd.Flags()
	opts.AddKubeFlags(flags, "namespace of the objects to show; default: all namespaces")
	flags.StringVar(&opts.address, "bind-address", defaultAddress, "address to listen on, as host:port")
	flags.StringSliceVar(&opts.hosts, "host", nil,
		"host names of a proxy in front of the pages; requests for names other than these and this machine are rejected")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// run serves the pages until an interrupt.
func run(cmd *cobra.Command, opts options) error {
	ctx, stop := signals.NotifyContext(cmd.Context())
	defer stop()

	view, err := live.Connect(ctx, opts.Kube)
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}

	pages, err := NewHandler(Config{View: view, Clock: clock.RealClock{}, Hosts: opts.hosts})
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}

	var listen net.ListenConfig

	listener, err := listen.Listen(ctx, "tcp", opts.address)
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}

	fmt.Fprintf(cmd.OutOrStdout(), "http://%s shows %s. Press Ctrl-C to stop.\n", browserAddress(listener.Addr()), view.Server)

	return serve(ctx, listener, pages)
}

// browserAddress returns the address to open in a browser, with localhost if the listener has no specific
// address.
func browserAddress(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}

	return fmt.Sprintf("localhost:%d", tcp.Port)
}

func serve(ctx context.Context, listener net.Listener, pages http.Handler) error {
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}

	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	select {
	case err := <-ended:
		return fmt.Errorf("web: serve: %w", err)
	case <-ctx.Done():
	}

	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()

	if err := server.Shutdown(shutdownCtx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("web: stop server: %w", err)
	}

	return nil
}

// guardRequests sets security headers, and rejects requests that do not come from a browser on this machine
// or from a proxy with one of the given names. The check of the Host header prevents DNS rebinding: a page
// that resolves its own name to our address sends its own name as Host. guardRequests also rejects methods
// other than GET and HEAD, and requests that pages of other sites make in the background.
func guardRequests(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
			"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")

		switch site := r.Header.Get("Sec-Fetch-Site"); {
		case !isAllowedHost(r.Host, hosts):
			http.Error(
				w,
				"hyperfleet web does not serve this host name: open the pages as localhost, or allow the name with --host",
				http.StatusForbidden,
			)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "the pages are read-only", http.StatusMethodNotAllowed)
		case site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
			http.Error(w, "other sites cannot load the pages", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isAllowedHost reports whether a Host header names this machine (localhost or a loopback address), or one of
// the given names. A given name may include a port.
func isAllowedHost(host string, names []string) bool {
	name := host
	if withoutPort, _, err := net.SplitHostPort(host); err == nil {
		name = withoutPort
	}

	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))

	addr, _ := netip.ParseAddr(name)
	if name == "localhost" || addr.IsLoopback() {
		return true
	}

	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) || strings.EqualFold(n, host) })
}
