// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// System is the name of external providers in metrics.
const System = "external"

// UnixScheme is the scheme of an address that is a Unix socket.
const UnixScheme = "unix://"

const (
	// callTimeout limits each call. A provider's method waits for one call to its hypervisor at most.
	callTimeout = 20 * time.Second
	// connectTimeout limits the time until the program has opened a session.
	connectTimeout = 5 * time.Second
	// pauseAfterTimeout is how long calls fail at once after a call has reached callTimeout.
	pauseAfterTimeout = 10 * time.Second
	// keepaliveTime and keepaliveTimeout find out that a program hangs or that its network is gone.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// minRetryDelay and maxRetryDelay limit the delay between two attempts to open a session.
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = 5 * time.Second
)

// Provider is the connection to one program.
type Provider struct {
	config  hypervisor.Config
	options hypervisor.Options
	conn    *grpc.ClientConn
	client  providerpb.HypervisorClient
	// timeout is callTimeout, except in tests.
	timeout time.Duration

	cancel     context.CancelFunc
	ctx        context.Context
	start      sync.Once
	goroutines sync.WaitGroup
	sessions   sessions
	// wakes limits the wake events.
	wakes *rate.Limiter
}

var (
	_ hypervisor.Connection    = (*Provider)(nil)
	_ hypervisor.Narrowed      = (*Provider)(nil)
	_ hypervisor.ConsoleReader = (*Provider)(nil)
	_ hypervisor.Terminal      = (*Provider)(nil)
	_ hypervisor.Executor      = (*Provider)(nil)
)

// New returns a connection to the program at the cluster's address. It is a hypervisor.Factory.
func New(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: the ownership of machines needs the cluster's name and the operator's UID",
			config.Name)
	}

	conn, err := Dial(config.Address, config.TLS)
	if err != nil {
		return nil, err
	}

	if options.Wake == nil {
		options.Wake = func(hypervisor.Owner) {}
	}

	p := &Provider{
		config: config, options: options, conn: conn, client: providerpb.NewHypervisorClient(conn), timeout: callTimeout,
		wakes: rate.NewLimiter(wakesPerSecond, wakeBurst),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.sessions.init()

	return p, nil
}

// Dial returns a gRPC connection to a program. It connects with the first call. A Unix socket needs no TLS
// configuration, because the permissions of its file control the access. Any other address needs one with a client
// certificate.
func Dial(address string, config *tls.Config) (*grpc.ClientConn, error) {
	target, transport := address, insecure.NewCredentials()

	if socket, isSocket := strings.CutPrefix(address, UnixScheme); isSocket {
		if !path.IsAbs(socket) {
			return nil, newAddressError(address)
		}
	} else {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, newAddressError(address)
		}

		if config == nil || len(config.Certificates) == 0 {
			return nil, hypervisor.Errorf(hypervisor.Rejected, "ClientCertificateMissing",
				"connect to provider %s: it needs a client certificate: set credentials.clientCert and credentials.clientKey", address)
		}

		target, transport = "dns:///"+address, credentials.NewTLS(config.Clone())
	}

	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = minRetryDelay, maxRetryDelay

	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// A proxy for the operator's other traffic would get the seeds of machines, and cannot reach a socket.
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(providerpb.MaxMessage), grpc.MaxCallSendMsgSize(providerpb.MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to provider %s: %w", address, err)
	}

	return conn, nil
}

func newAddressError(address string) error {
	return hypervisor.Errorf(hypervisor.Rejected, "ProviderAddressInvalid",
		"connect to provider %q: the address must be HOST:PORT, or unix:// and an absolute path", address)
}

// Close ends the session and the background work. It does not change machines.
func (p *Provider) Close() {
	p.cancel()
	p.start.Do(func() {}) // no session opens any more
	p.goroutines.Wait()

	_ = p.conn.Close()
}

// Supports reports whether the program has the capability for an optional interface.
func (p *Provider) Supports(target any) bool {
	switch target.(type) {
	case *hypervisor.ConsoleReader:
		return p.hasCapability(providerpb.CapabilityConsole)
	case *hypervisor.Terminal:
		return p.hasCapability(providerpb.CapabilityTerminal)
	case *hypervisor.Executor:
		return p.hasCapability(providerpb.CapabilityCommands)
	default:
		return false
	}
}

// hasCapability reports whether the program has the capability. If there was no session yet, hasCapability waits for the
// first one. If the program does not respond, it has no capabilities.
func (p *Provider) hasCapability(capability string) bool {
	ctx, cancel := context.WithTimeout(p.ctx, connectTimeout)
	defer cancel()

	_, _ = p.session(ctx)

	return p.sessions.hasCapability(capability)
}

// callForClaim is call for the methods that the reconciles of claims use. Only maxSlowCalls such calls run while the
// program is slow.
func (p *Provider) callForClaim(ctx context.Context, call hypervisor.Call, do func(context.Context) error) error {
	leave, err := p.sessions.admit()
	if err != nil {
		return err
	}
	defer leave()

	return p.call(ctx, call, do)
}

// call makes one call through Options.WrapCall, with the session in its metadata. do gets a context with a timeout.
func (p *Provider) call(ctx context.Context, call hypervisor.Call, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()

	session, err := p.session(ctx)
	if err != nil {
		return err
	}

	start := time.Now()

	return p.wrapCall(ctx, call, func() error {
		err := do(withSession(ctx, session))

		// The program can notice the end of the timeout before this process does. If only the caller's own, shorter timeout
		// is over, the program is not slow.
		isTimeout := errors.Is(ctx.Err(), context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
		if time.Since(start) > p.timeout/2 {
			p.sessions.setSlow()

			if err != nil && isTimeout {
				p.sessions.pause(time.Now().Add(pauseAfterTimeout))
			}
		}

		return err
	})
}

// wrapCall makes a call through Options.WrapCall, which gets the error that the caller gets.
func (p *Provider) wrapCall(ctx context.Context, call hypervisor.Call, do func() error) error {
	decoded := func() error {
		err := do()
		if err != nil {
			err = p.decodeError(ctx, call, err)
		}

		return err
	}

	if p.options.WrapCall == nil {
		return decoded()
	}

	return p.options.WrapCall(ctx, call, decoded)
}
