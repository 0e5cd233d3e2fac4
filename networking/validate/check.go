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

// target is the name and one address of the machine to check.
type target struct {
	fqdn string
	addr netip.Addr
}

// finding is the result of one check.
type finding struct {
	// check is the name of the check in messages: "forward", "reverse", "ping" or "ssh".
	check string
	// reason is empty if the check passed.
	reason, message string
	// didNotRun is true if the check could not run. The result then says nothing about the machine.
	didNotRun bool
}

// ports are the ports of the servers. Tests use other ports.
type ports struct{ dns, ssh string }

// check is one DNS look-up or one network test.
type check struct {
	name    string
	timeout time.Duration
	run     func(context.Context, target) finding
}

// runWithTimeout runs the check with its timeout.
func (c check) runWithTimeout(ctx context.Context, t target) finding {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	return c.run(ctx, t)
}

// newDNSChecks returns the look-ups that the settings enable. The machine's name must be in expectedDomain of
// the settings if it is set, and in domain otherwise.
func newDNSChecks(settings *v1alpha1.HypervisorDNS, domain string, ports ports) []check {
	validation := settings.Validation
	timeout := secondsToDuration(validation.TimeoutSeconds, defaultLookupTimeout)
	domain = cmp.Or(validation.ExpectedDomain, domain)

	checks := []check{{"forward", timeout, func(ctx context.Context, t target) finding {
		return checkForward(ctx, settings.Servers, ports.dns, domain, t)
	}}}

	if validation.ValidateReverse {
		checks = append(checks, check{"reverse", timeout, func(ctx context.Context, t target) finding {
			return checkReverse(ctx, settings.Servers, ports.dns, t)
		}})
	}

	return checks
}

// newNetworkChecks returns the network tests that the settings enable.
func newNetworkChecks(validation *v1alpha1.NetworkValidation, ports ports) []check {
	timeout := secondsToDuration(validation.TimeoutSeconds, defaultTestTimeout)

	var checks []check

	if validation.PingTest {
		checks = append(checks, check{"ping", timeout, func(ctx context.Context, t target) finding {
			err := ping(ctx, t.addr)

			switch {
			case errors.Is(err, errPingNotPermitted):
				return finding{check: "ping", reason: ReasonPingNotPermitted, message: err.Error(), didNotRun: true}
			case err != nil:
				return finding{check: "ping", reason: ReasonPingFailed, message: err.Error()}
			default:
				return finding{check: "ping"}
			}
		}})
	}

	if validation.SSHTest {
		checks = append(checks, check{"ssh", timeout, func(ctx context.Context, t target) finding {
			if err := checkSSHBanner(ctx, net.JoinHostPort(t.addr.String(), ports.ssh)); err != nil {
				return finding{check: "ssh", reason: ReasonSSHFailed, message: err.Error()}
			}

			return finding{check: "ssh"}
		}})
	}

	return checks
}

func secondsToDuration(n int32, fallback time.Duration) time.Duration {
	if n <= 0 {
		return fallback
	}

	return time.Duration(n) * time.Second
}

// checkForward checks that the name is in its domain and resolves to the machine's address.
func checkForward(ctx context.Context, servers []string, port, domain string, t target) finding {
	newFinding := func(reason, format string, args ...any) finding {
		return finding{check: "forward", reason: reason, message: fmt.Sprintf(format, args...)}
	}

	if domain != "" && !strings.HasSuffix(t.fqdn, "."+strings.ToLower(domain)) {
		return newFinding(ReasonWrongDomain, "the machine's name %s is not in the domain %s", t.fqdn, domain)
	}

	resolver, err := newResolver(servers, port)
	if err != nil {
		return newFinding(ReasonForwardFailed, "%v", err)
	}

	addresses, err := resolver.lookupAddresses(ctx, t.fqdn, t.addr)

	switch {
	case err != nil:
		return newFinding(ReasonForwardFailed, "look up %s: %v", t.fqdn, err)
	case len(addresses) == 0:
		return newFinding(ReasonForwardFailed, "look up %s: there is no such record", t.fqdn)
	case !slices.Contains(addresses, t.addr.Unmap()):
		return newFinding(ReasonForwardMismatch, "%s resolves to %s, but the machine has the address %s",
			t.fqdn, formatAddresses(addresses), t.addr)
	default:
		return finding{check: "forward"}
	}
}

// checkReverse checks that the machine's address resolves to its name.
func checkReverse(ctx context.Context, servers []string, port string, t target) finding {
	newFinding := func(reason, format string, args ...any) finding {
		return finding{check: "reverse", reason: reason, message: fmt.Sprintf(format, args...)}
	}

	resolver, err := newResolver(servers, port)
	if err != nil {
		return newFinding(ReasonReverseFailed, "%v", err)
	}

	names, err := resolver.lookupNames(ctx, t.addr)

	switch {
	case err != nil:
		return newFinding(ReasonReverseFailed, "look up the name of %s: %v", t.addr, err)
	case len(names) == 0:
		return newFinding(ReasonReverseFailed, "look up the name of %s: there is no such record", t.addr)
	case !slices.Contains(names, t.fqdn):
		return newFinding(ReasonReverseMismatch, "%s resolves to %s, but the machine has the name %s",
			t.addr, strings.Join(names, ", "), t.fqdn)
	default:
		return finding{check: "reverse"}
	}
}

// summarize returns the status, reason and message of the condition for the findings. The reason is that of
// the first failed check, or of the first check that could not run if no check failed.
func summarize(findings []finding, m *subject) (status metav1.ConditionStatus, reason, message string) {
	var (
		passed, texts []string
		first         *finding
	)

	for i, f := range findings {
		if f.reason == "" {
			passed = append(passed, f.check)

			continue
		}

		texts = append(texts, f.message)

		if first == nil || (first.didNotRun && !f.didNotRun) {
			first = &findings[i]
		}
	}

	if first == nil {
		message := fmt.Sprintf("%s (%s) passed: %s", m.fqdn, formatAddresses(m.addrs), strings.Join(passed, ", "))

		return metav1.ConditionTrue, ReasonPassed, message
	}

	message = strings.Join(texts, "; ")
	if len(passed) > 0 {
		message += "; passed: " + strings.Join(passed, ", ")
	}

	if first.didNotRun {
		return metav1.ConditionUnknown, first.reason, message
	}

	return metav1.ConditionFalse, first.reason, message
}

func formatAddresses(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}

	return strings.Join(texts, ", ")
}

// asError returns the finding as an error for the metrics, and nil if the check passed.
func (f finding) asError() error {
	if f.reason == "" {
		return nil
	}

	return errors.New(f.reason)
}
