// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Reasons of the condition NetworkValidated.
const (
	ReasonPassed           = "ValidationPassed"
	ReasonWrongDomain      = "WrongDomain"
	ReasonForwardFailed    = "ForwardLookupFailed"
	ReasonForwardMismatch  = "ForwardLookupMismatch"
	ReasonReverseFailed    = "ReverseLookupFailed"
	ReasonReverseMismatch  = "ReverseLookupMismatch"
	ReasonPingFailed       = "PingFailed"
	ReasonPingNotPermitted = "PingNotPermitted"
	ReasonSSHFailed        = "SSHFailed"
)

const (
	defaultLookupTimeout = 10 * time.Second
	defaultTestTimeout   = 30 * time.Second
)

// target is the machine that is looked at.
type target struct {
	fqdn string
	addr netip.Addr
}

// finding is what one look-up or test came to.
type finding struct {
	// what was looked at, for words: "forward", "reverse", "ping", "ssh".
	what string
	// reason is empty if it passed.
	reason, message string
	// unknown says that it could not be made, which tells nothing of the machine.
	unknown bool
}

// ports are where servers are; tests have them elsewhere.
type ports struct{ dns, ssh string }

// check is one look-up or test.
type check struct {
	name string
	run  func(context.Context, target) finding
}

// dnsChecks are the look-ups that the settings ask for, of names in a domain unless the
// settings expect another one.
func dnsChecks(settings *v1alpha1.HypervisorDNS, domain string, ports ports) []check {
	validation := settings.Validation
	timeout := seconds(validation.TimeoutSeconds, defaultLookupTimeout)
	domain = cmp.Or(validation.ExpectedDomain, domain)

	checks := []check{{"forward", func(ctx context.Context, t target) finding {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()

		return lookForward(ctx, settings.Servers, ports.dns, domain, t)
	}}}

	if validation.ValidateReverse {
		checks = append(checks, check{"reverse", func(ctx context.Context, t target) finding {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()

			return lookReverse(ctx, settings.Servers, ports.dns, t)
		}})
	}

	return checks
}

// networkChecks are the tests that the settings ask for.
func networkChecks(validation *v1alpha1.NetworkValidation, ports ports) []check {
	timeout := seconds(validation.TimeoutSeconds, defaultTestTimeout)

	var checks []check

	if validation.PingTest {
		checks = append(checks, check{"ping", func(ctx context.Context, t target) finding {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()

			err := ping(ctx, t.addr)

			switch {
			case errors.Is(err, errPingNotPermitted):
				return finding{what: "ping", reason: ReasonPingNotPermitted, message: err.Error(), unknown: true}
			case err != nil:
				return finding{what: "ping", reason: ReasonPingFailed, message: err.Error()}
			default:
				return finding{what: "ping"}
			}
		}})
	}

	if validation.SSHTest {
		checks = append(checks, check{"ssh", func(ctx context.Context, t target) finding {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()

			if err := banner(ctx, net.JoinHostPort(t.addr.String(), ports.ssh)); err != nil {
				return finding{what: "ssh", reason: ReasonSSHFailed, message: err.Error()}
			}

			return finding{what: "ssh"}
		}})
	}

	return checks
}

func seconds(n int32, fallback time.Duration) time.Duration {
	if n <= 0 {
		return fallback
	}

	return time.Duration(n) * time.Second
}

// lookForward checks that the name is in its domain and leads to the machine's address.
func lookForward(ctx context.Context, servers []string, port, domain string, t target) finding {
	fail := func(reason, format string, args ...any) finding {
		return finding{what: "forward", reason: reason, message: fmt.Sprintf(format, args...)}
	}

	if domain != "" && !strings.HasSuffix(t.fqdn, "."+strings.ToLower(domain)) {
		return fail(ReasonWrongDomain, "the machine's name %s is not in the domain %s", t.fqdn, domain)
	}

	resolver, err := newResolver(servers, port)
	if err != nil {
		return fail(ReasonForwardFailed, "%v", err)
	}

	found, err := resolver.forward(ctx, t.fqdn, t.addr)

	switch {
	case err != nil:
		return fail(ReasonForwardFailed, "look up %s: %v", t.fqdn, err)
	case len(found) == 0:
		return fail(ReasonForwardFailed, "look up %s: there is no such record", t.fqdn)
	case !slices.Contains(found, t.addr.Unmap()):
		return fail(ReasonForwardMismatch, "%s leads to %v, and the machine has %s", t.fqdn, found, t.addr)
	default:
		return finding{what: "forward"}
	}
}

// lookReverse checks that the machine's address leads to its name.
func lookReverse(ctx context.Context, servers []string, port string, t target) finding {
	fail := func(reason, format string, args ...any) finding {
		return finding{what: "reverse", reason: reason, message: fmt.Sprintf(format, args...)}
	}

	resolver, err := newResolver(servers, port)
	if err != nil {
		return fail(ReasonReverseFailed, "%v", err)
	}

	found, err := resolver.reverse(ctx, t.addr)

	switch {
	case err != nil:
		return fail(ReasonReverseFailed, "look up the name of %s: %v", t.addr, err)
	case len(found) == 0:
		return fail(ReasonReverseFailed, "look up the name of %s: there is no such record", t.addr)
	case !slices.Contains(found, t.fqdn):
		return fail(ReasonReverseMismatch, "%s leads to %v, and the machine is %s", t.addr, found, t.fqdn)
	default:
		return finding{what: "reverse"}
	}
}

// verdict sums findings up: a failure comes before what could not be tested.
func verdict(findings []finding, m *subject) (status metav1.ConditionStatus, reason, message string) {
	var (
		passed, texts []string
		first         *finding
	)

	for i, f := range findings {
		if f.reason == "" {
			passed = append(passed, f.what)

			continue
		}

		texts = append(texts, f.message)

		if first == nil || (first.unknown && !f.unknown) {
			first = &findings[i]
		}
	}

	if first == nil {
		return metav1.ConditionTrue, ReasonPassed, fmt.Sprintf("%s (%s) passed: %s", m.fqdn, list(m.addrs), strings.Join(passed, ", "))
	}

	message = strings.Join(texts, "; ")
	if len(passed) > 0 {
		message += "; passed: " + strings.Join(passed, ", ")
	}

	if first.unknown {
		return metav1.ConditionUnknown, first.reason, message
	}

	return metav1.ConditionFalse, first.reason, message
}

// list is addresses in words.
func list(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}

	return strings.Join(texts, ", ")
}

// err is the finding for the metrics.
func (f finding) err() error {
	if f.reason == "" {
		return nil
	}

	return errors.New(f.reason)
}
