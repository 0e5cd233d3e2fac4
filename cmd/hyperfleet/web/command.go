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
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	defaultAddress = "127.0.0.1:8088"
	// Bounds of a connection.
	headerTimeout = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	endTimeout    = 5 * time.Second
)

// options are the command's flags.
type options struct {
	cli.Kube

	address string
	hosts   []string
}

func (o *options) validate() error {
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return cli.Usagef("web: --bind-address %q must be host:port such as %s", o.address, defaultAddress)
	}

	addr, _ := netip.ParseAddr(host)
	if !addr.IsLoopback() && host != "localhost" && len(o.hosts) == 0 {
		return cli.Usagef("web: --bind-address %s can be reached by others, and the pages ask nobody who they are: "+
			"put a proxy that does before it, and give the name that it is called by with --host", o.address)
	}

	return nil
}

// New makes the command.
func New() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show pools, jobs, machines and hypervisors in a browser, on this machine alone",
		Long: `Serve pages that show what the operator does: what waits and why, each pool, job and machine,
hypervisors with their nodes, hosts and bridges. They are served on loopback, with the rights of
your kubeconfig, change nothing, and load nothing from the internet.

Whoever may open a connection to the address sees what you may see. To share the pages, run the
command behind a proxy that authenticates people, and give its name with --host.

The exit code is 0 after an interrupt; 1 if the API server does not answer, or the address is
taken; 2 if the command line is invalid.`,
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
	opts.AddFlags(flags, "what is shown")
	flags.Lookup("namespace").Usage = "namespace that is shown; default: all"
	flags.StringVar(&opts.address, "bind-address", defaultAddress, "address to listen on, as host:port")
	flags.StringSliceVar(&opts.hosts, "host", nil, "names that a proxy before the pages is called by; others are refused")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

// run serves until an interrupt.
func run(cmd *cobra.Command, opts options) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
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

	fmt.Fprintf(cmd.OutOrStdout(), "http://%s shows %s. Ctrl-C ends it.\n", shown(listener.Addr()), view.Server)

	return serve(ctx, listener, pages)
}

// shown is an address as a browser takes it.
func shown(addr net.Addr) string {
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

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()

	if err := server.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("web: end: %w", err)
	}

	return nil
}

// guard lets through what a browser on this machine, or a proxy of a given name, asks for. A page
// elsewhere that gives our address a name of its own (DNS rebinding) has another Host.
func guard(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
			"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")

		switch site := r.Header.Get("Sec-Fetch-Site"); {
		case !allowed(r.Host, hosts):
			http.Error(
				w,
				"this name is not one of hyperfleet web's: open it as localhost, or allow the name with --host",
				http.StatusForbidden,
			)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "the pages can only be read", http.StatusMethodNotAllowed)
		case site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate":
			http.Error(w, "another site may not load the pages", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// allowed says whether a Host header names this machine or one of the names.
func allowed(host string, names []string) bool {
	name := host
	if before, _, err := net.SplitHostPort(host); err == nil {
		name = before
	}

	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))

	addr, _ := netip.ParseAddr(name)
	if name == "localhost" || addr.IsLoopback() {
		return true
	}

	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) || strings.EqualFold(n, host) })
}
