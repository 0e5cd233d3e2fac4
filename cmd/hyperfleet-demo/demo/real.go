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
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

// Values of --hypervisor.
const (
	hypervisorSimulated = "sim"
	hypervisorReal      = "real"
	hypervisorLibvirt   = "libvirt"
)

// realOptions are the flags for a real hypervisor.
type realOptions struct {
	// Hypervisor is hypervisorSimulated, hypervisorReal or hypervisorLibvirt. Address is the IP address at which machines on the
	// hypervisor reach this computer.
	Hypervisor, Address string
}

func (o *realOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.Hypervisor, "hypervisor", hypervisorSimulated,
		"sim; libvirt to create real machines with libvirt and QEMU on this computer; or real to create them on the "+
			"Proxmox VE cluster in the PVE_* environment variables (go doc ./test/realpve)")
	flags.StringVar(&o.Address, "address", "", "real: IP `address` at which machines on the Proxmox VE cluster reach this computer")
}

// isRealHypervisor reports whether the hypervisor is a Proxmox VE cluster that exists already.
func (o *realOptions) isRealHypervisor() bool { return o.Hypervisor == hypervisorReal }

func (o *realOptions) isLibvirt() bool { return o.Hypervisor == hypervisorLibvirt }

// hostAddress returns the address at which machines reach this computer.
func (o *realOptions) hostAddress() string { return cmp.Or(o.Address, qemuHostAddress) }

// listenAddress returns the address on which servers for machines listen.
func (o *realOptions) listenAddress() string { return cmp.Or(o.Address, loopbackAddress) }

// validateReal validates the flags and the environment variables for a real hypervisor.
func (o *Options) validateReal() error {
	switch {
	case !slices.Contains([]string{hypervisorSimulated, hypervisorReal, hypervisorLibvirt}, o.Hypervisor):
		return fmt.Errorf("--hypervisor must be sim, libvirt or real, not %q", o.Hypervisor)
	case !o.isRealHypervisor() && o.Address != "":
		return errors.New("--address needs --hypervisor real")
	case o.isLibvirt() && o.hasHypervisorFault():
		return errors.New("--faults vm-crash and clone-lock need the simulator: remove --hypervisor libvirt")
	case !o.isRealHypervisor():
		return nil
	}

	var errs []error

	if err := realpve.CheckEnvironment(); err != nil {
		errs = append(errs, fmt.Errorf("--hypervisor real: %w", err))
	}

	if net.ParseIP(o.Address) == nil {
		errs = append(errs, fmt.Errorf(
			"--hypervisor real: --address must be the IP address at which machines on the Proxmox VE cluster reach this computer, not %q",
			o.Address))
	}

	if o.Platform != "github" || o.CompareWarm {
		errs = append(errs, errors.New("--hypervisor real needs --platform github, without --compare-warm"))
	}

	if o.hasHypervisorFault() {
		errs = append(errs, errors.New("--faults vm-crash and clone-lock need the simulator: remove --hypervisor real"))
	}

	return errors.Join(errs...)
}

func (o *Options) hasHypervisorFault() bool {
	_, ok := o.faultsFlag(injectorHypervisor)

	return ok
}

// realHypervisor is a real Proxmox VE cluster.
type realHypervisor struct {
	site    *realpve.Site
	counter *counter
	server  *http.Server
}

// connectRealHypervisor connects to the Proxmox VE cluster in the environment variables, and starts a
// proxy through which the operator reaches the cluster and which counts the operator's calls.
func (s *stack) connectRealHypervisor(ctx context.Context) (string, error) {
	site, err := realpve.Open(ctx)
	if err != nil {
		return "", err
	}

	h := &realHypervisor{site: site, counter: newCounter()}
	s.hypervisor = h

	reach := site.BaseConfig()
	if err := h.startProxy(ctx, s, reach); err != nil {
		return "", fmt.Errorf("start the proxy that counts calls: %w", err)
	}

	s.settings.proxmoxTokenID, s.settings.proxmoxTokenSecret = reach.Credentials.TokenID, reach.Credentials.TokenSecret
	s.settings.real = &realSettings{config: reach, template: int32(site.Template)} //nolint:gosec // a VMID

	return "template " + strconv.Itoa(site.Template) + " at " + reach.Endpoint, nil
}

// startProxy starts a TLS proxy on loopback, with its own certificate.
func (h *realHypervisor) startProxy(ctx context.Context, s *stack, reach hypervisor.Config) error {
	target, err := url.Parse(reach.Endpoint)
	if err != nil {
		return fmt.Errorf("parse the endpoint: %w", err)
	}

	files := &machineAccess{certFile: filepath.Join(s.dir, "proxmox.crt"), keyFile: filepath.Join(s.dir, "proxmox.key")}
	if _, err := files.writeCertificate(s.clock.Now(), loopbackAddress); err != nil {
		return err
	}

	cert, err := tls.LoadX509KeyPair(files.certFile, files.keyFile)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopbackHostPort(0))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}

	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	h.server = &http.Server{
		Handler: h.counter.countRequests(&httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host}) },
			Transport: &http.Transport{TLSClientConfig: reach.TLS}, ErrorLog: quiet,
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: callTimeout, ErrorLog: quiet,
	}

	go func() { _ = h.server.ServeTLS(listener, "", "") }() // until it is closed

	s.settings.proxmoxURL = "https://" + listener.Addr().String()
	s.settings.proxmoxFingerprint = formatFingerprint(cert)

	return nil
}

func formatFingerprint(cert tls.Certificate) string {
	sum := sha256.Sum256(cert.Certificate[0])
	parts := make([]string, 0, len(sum))

	for _, b := range sum {
		parts = append(parts, fmt.Sprintf("%02X", b))
	}

	return strings.Join(parts, ":")
}

// state reads VMs and ISOs with the administrator's token.
func (h *realHypervisor) state(ctx context.Context) (hypervisorState, error) {
	machines, isos, err := h.site.ListMachines(ctx)
	if err != nil {
		return hypervisorState{}, fmt.Errorf("list VMs and ISOs on Proxmox VE: %w", err)
	}

	out := hypervisorState{vms: map[int]vmState{}, isos: isos}
	for id, m := range machines {
		out.vms[id] = vmState{label: fmt.Sprintf("%d on %s", id, m.Node), fingerprint: m.Config}
	}

	return out, nil
}

func (h *realHypervisor) stateWithCalls(ctx context.Context) (hypervisorState, error) {
	out, err := h.state(ctx)
	out.calls = h.counter.callCounts()

	return out, err
}

// measure sets the numbers that the proxy has counted. It does not set a floor, because the boot time of
// real machines is unknown.
func (h *realHypervisor) measure(_ context.Context, s *stack, r *Report) error {
	r.VMsCreated = h.counter.cloneCount()
	r.countCalls(h.counter.callCounts(), s.baseline)

	return nil
}

// consoles returns an empty map, because Proxmox VE does not store console output.
func (h *realHypervisor) consoles(context.Context) (map[int]string, error) {
	return map[int]string{}, nil
}

// close stops the proxy and returns an error if the operator left objects on the cluster.
func (h *realHypervisor) close() error {
	var err error
	if h.server != nil {
		err = h.server.Close()
	}

	return errors.Join(err, h.site.CheckLeftovers(context.Background()))
}

// realSettings are the settings of a real hypervisor for the objects.
type realSettings struct {
	config   hypervisor.Config
	template int32
}

// applyTo sets the fields of the cluster's spec. It does nothing on nil.
func (r *realSettings) applyTo(spec *v1alpha1.HypervisorClusterSpec) {
	if r == nil {
		return
	}

	c := r.config
	spec.DefaultStorage, spec.ISOStorage = c.DefaultStorage, c.ISOStorage
	spec.DefaultNetwork, spec.ResourcePool = c.DefaultNetwork, c.ResourcePool
	spec.VMIDRange = &v1alpha1.VMIDRange{Min: int32(c.IDMin), Max: int32(c.IDMax)} //nolint:gosec // VMIDs
}

// templateSource returns base with the ID of the real template in place of the name. On nil, it returns
// base unchanged.
func (r *realSettings) templateSource(base v1alpha1.ProxmoxTemplate) *v1alpha1.ProxmoxTemplate {
	if r != nil {
		base.TemplateName, base.TemplateID = "", &r.template
	}

	return &base
}
