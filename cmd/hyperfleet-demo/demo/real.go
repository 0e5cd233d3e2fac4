// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// What the hypervisor can be.
const (
	hypervisorNone = "sim"
	hypervisorReal = "real"
)

// realOptions are the flags of a real hypervisor.
type realOptions struct {
	// Hypervisor is hypervisorNone or hypervisorReal. Address is this machine's, as machines
	// on the hypervisor see it.
	Hypervisor, Address string
}

func (o *realOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.Hypervisor, "hypervisor", hypervisorNone, "sim, or real for the real Proxmox VE that PVE_ENDPOINT and its "+
		"fellows name (go doc ./test/realpve); machines are real ones")
	flags.StringVar(&o.Address, "address", "", "real: this machine's IP `address` as machines on the Proxmox VE see it")
}

func (o *realOptions) onReal() bool { return o.Hypervisor == hypervisorReal }

// inside is this machine's address as machines see it, bindTo the one to listen on for them.
func (o *realOptions) inside() string { return cmp.Or(o.Address, hostInside) }

func (o *realOptions) bindTo() string { return cmp.Or(o.Address, loopbackAddress) }

// validateReal says what is in the way of a real hypervisor.
func (o *Options) validateReal() error {
	switch {
	case o.Hypervisor != hypervisorNone && o.Hypervisor != hypervisorReal:
		return fmt.Errorf("--hypervisor must be sim or real, not %q", o.Hypervisor)
	case !o.onReal() && o.Address != "":
		return errors.New("--address needs --hypervisor real")
	case !o.onReal():
		return nil
	}

	var errs []error

	if err := realpve.Check(); err != nil {
		errs = append(errs, fmt.Errorf("--hypervisor real: %w", err))
	}

	if net.ParseIP(o.Address) == nil {
		errs = append(errs, fmt.Errorf(
			"--hypervisor real: --address must be this machine's IP address as machines on the Proxmox VE see it, not %q", o.Address))
	}

	if o.Platform != "github" || o.CompareWarm {
		errs = append(errs, errors.New("--hypervisor real is for --platform github, without --compare-warm"))
	}

	if o.hypervisorFault() {
		errs = append(errs, errors.New("--faults of machines and their hypervisor are the simulator's: leave out --hypervisor real"))
	}

	return errors.Join(errs...)
}

func (o *Options) hypervisorFault() bool {
	_, ok := o.faultsOf(ownerHypervisor)

	return ok
}

// realHypervisor is a real Proxmox VE.
type realHypervisor struct {
	site    *realpve.Site
	counter *counter
	server  *http.Server
}

// startReal finds the Proxmox VE that the environment names, and starts a proxy before it that
// counts the operator's calls.
func (s *stack) startReal(ctx context.Context) (string, error) {
	site, err := realpve.Open(ctx)
	if err != nil {
		return "", err
	}

	h := &realHypervisor{site: site, counter: newCounter()}
	s.hypervisor = h

	reach := site.Reach()
	if err := h.listen(ctx, s, reach); err != nil {
		return "", fmt.Errorf("start the proxy that counts calls: %w", err)
	}

	s.setting.proxmoxTokenID, s.setting.proxmoxTokenSecret = reach.Credentials.TokenID, reach.Credentials.TokenSecret
	s.setting.real = &realSetting{config: reach, template: int32(site.Template)} //nolint:gosec // a VMID

	return "template " + strconv.Itoa(site.Template) + " at " + reach.Endpoint, nil
}

// listen starts the proxy.
func (h *realHypervisor) listen(ctx context.Context, s *stack, reach hypervisor.Config) error {
	target, err := url.Parse(reach.Endpoint)
	if err != nil {
		return fmt.Errorf("read the endpoint: %w", err)
	}

	own := &gate{certFile: filepath.Join(s.dir, "proxmox.crt"), keyFile: filepath.Join(s.dir, "proxmox.key")}
	if _, err := own.certify(s.clock.Now(), loopbackAddress); err != nil {
		return err
	}

	cert, err := tls.LoadX509KeyPair(own.certFile, own.keyFile)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(0))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}

	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	h.server = &http.Server{
		Handler: h.counter.handler(&httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host}) },
			Transport: &http.Transport{TLSClientConfig: reach.TLS}, ErrorLog: quiet,
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: callTimeout, ErrorLog: quiet,
	}

	go func() { _ = h.server.ServeTLS(listener, "", "") }() // until it is closed

	s.setting.proxmoxURL = "https://" + listener.Addr().String()
	s.setting.proxmoxFingerprint = fingerprint(cert)

	return nil
}

func fingerprint(cert tls.Certificate) string {
	sum := sha256.Sum256(cert.Certificate[0])
	parts := make([]string, 0, len(sum))

	for _, b := range sum {
		parts = append(parts, fmt.Sprintf("%02X", b))
	}

	return strings.Join(parts, ":")
}

// state takes a look at VMs and ISOs as the administrator.
func (h *realHypervisor) state(ctx context.Context) (hypervisorState, error) {
	machines, isos, err := h.site.Machines(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("ask Proxmox VE what it has: %w", err)
	}

	out := hypervisorState{vms: map[int]vmState{}, isos: isos}
	for id, m := range machines {
		out.vms[id] = vmState{label: fmt.Sprintf("%d on %s", id, m.Node), fingerprint: m.Config}
	}

	return out, nil
}

func (h *realHypervisor) withCalls(ctx context.Context) (hypervisorState, error) {
	out, err := h.state(ctx)
	out.calls = h.counter.counts()

	return out, err
}

// measure fills in what the proxy has counted. There is no floor: boots take as long as they
// take.
func (h *realHypervisor) measure(_ context.Context, s *stack, r *Report) error {
	r.VMsCreated = h.counter.clones()
	r.countCalls(h.counter.counts(), s.baseline)

	return nil
}

// consoles are empty: Proxmox VE keeps nothing of what machines say.
func (h *realHypervisor) consoles(context.Context) (map[int]string, error) {
	return map[int]string{}, nil
}

// close says what is left on the site.
func (h *realHypervisor) close() error {
	var err error
	if h.server != nil {
		err = h.server.Close()
	}

	return errors.Join(err, h.site.Left(context.Background()))
}

// realSetting is what objects say of a real hypervisor.
type realSetting struct {
	config   hypervisor.Config
	template int32
}

// apply writes it into the cluster's spec.
func (r *realSetting) apply(spec *v1alpha1.HypervisorClusterSpec) {
	if r == nil {
		return
	}

	c := r.config
	spec.DefaultStorage, spec.ISOStorage = c.DefaultStorage, c.ISOStorage
	spec.DefaultNetwork, spec.ResourcePool = c.DefaultNetwork, c.ResourcePool
	spec.VMIDRange = &v1alpha1.VMIDRange{Min: int32(c.IDMin), Max: int32(c.IDMax)} //nolint:gosec // VMIDs
}

// source is the template's, by its id.
func (r *realSetting) source(otherwise v1alpha1.ProxmoxTemplate) *v1alpha1.ProxmoxTemplate {
	if r != nil {
		otherwise.TemplateName, otherwise.TemplateID = "", &r.template
	}

	return &otherwise
}
