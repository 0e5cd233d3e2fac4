// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/mounted"
	"github.com/hyperfleet/hyperfleet/cmd/internal/signals"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
)

// New returns the command `hyperfleet operator`.
func New() *cobra.Command {
	var kubeconfig string

	spec := NewConfigSpec()
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the controllers of the operator",
		Long: "Run the controllers of the enabled areas against a Kubernetes API server. The operator merges its\n" +
			"configuration from defaults, a file (--config, usually from a ConfigMap), HYPERFLEET_* environment\n" +
			"variables, and flags; later sources override earlier ones. If a mounted ConfigMap changes and the new\n" +
			"configuration is valid, the operator exits, so that Kubernetes restarts it with the new configuration.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files := mounted.NewWatcher(spec.FilePath(cmd.Flags()), func() error { return spec.Check(cmd.Flags()) })

			config, err := spec.Load(cmd.Flags())
			if err != nil {
				return fmt.Errorf("read configuration: %w", err)
			}

			logger, err := newLogger(config.Log)
			if err != nil {
				return err
			}

			kube, err := loadKubeConfig(kubeconfig)
			if err != nil {
				return err
			}

			ctx, cancel := files.CancelOnChange(cmd.Context(), logger)
			defer cancel()

			ctx, stop := signals.NotifyContext(ctx)
			defer stop()

			endTracing, err := tracing.Start(ctx, tracing.Options{
				Service: "hyperfleet-operator", Version: version.Read().Version, Log: logger,
			})
			if err != nil {
				return err
			}
			defer endTracing()

			return run(ctx, *config, kube, logger)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "",
		"kubeconfig file; default: KUBECONFIG, otherwise the service account of the pod")

	if err := spec.AddFlags(cmd.Flags()); err != nil {
		panic(err) // the configuration's type is not one that kit/strictyaml can read
	}

	settings, err := spec.NewCommand()
	if err != nil {
		panic(err) // as above
	}

	cmd.AddCommand(settings)

	return cmd
}

// NewConfigSpec returns the specification of the operator's configuration: its sources, defaults and
// validation.
func NewConfigSpec() *strictyaml.Spec[v1alpha1.OperatorConfig] {
	return &strictyaml.Spec[v1alpha1.OperatorConfig]{
		APIVersion:    v1alpha1.APIVersion,
		Kind:          v1alpha1.KindOperatorConfig,
		Default:       v1alpha1.Default(),
		EnvFile:       strictyaml.EnvPrefix + "CONFIG",
		OwnsPrefix:    true,
		ForeignEnv:    []string{tracing.EnvEnabled},
		Aliases:       map[string]string{"log.level": log.EnvLevel},
		CompoundWords: []string{"DevID", "HyperShift", "MetalLB", "URLs"},
		Help:          v1alpha1.Help(),
		Validate:      validate,
	}
}

// validate checks the rules that the types of the configuration cannot express. The error contains all
// problems.
func validate(cfg *v1alpha1.OperatorConfig) error {
	errs := []error{
		validateBridge(cfg.Bridge), validateHosts(cfg.Hosts), validateDevID(cfg.Identity.DevID), validateSPIRE(cfg.Identity.SPIRE),
		validateShard(*cfg), validateIntervals(*cfg), validateMetrics(cfg.Metrics), validateLogs(cfg.Runners.Logs),
		validateWebhooks(*cfg),
	}

	addError := func(key string, err error) {
		if err != nil {
			errs = append(errs, strictyaml.ErrorAt(key, "%w", err))
		}
	}
	rejectIf := func(isInvalid bool, key, text string) {
		if isInvalid {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}

	_, err := log.ParseLevel(cfg.Log.Level)
	addError("log.level", err)

	_, err = log.ParseFormat(cfg.Log.Format)
	addError("log.format", err)

	for _, area := range cfg.Controllers {
		rejectIf(!slices.Contains(v1alpha1.Areas(), area), "controllers",
			fmt.Sprintf("unknown area %q: use any of %s", area, strings.Join(v1alpha1.Areas(), ", ")))
	}

	rejectIf(cfg.Runners.Concurrency < 1, "runners.concurrency", "it must be at least 1")
	rejectIf(cfg.Networking.Concurrency < 1, "networking.concurrency", "it must be at least 1")
	rejectIf(cfg.Namespace == "", "namespace", "it must name the namespace that the operator runs in")
	addError("guest.url", validateGuestURL(cfg.Guest.URL))

	_, err = bounds.NewEgressPolicy(cfg.Runners.PlatformURLs, nil)
	addError("runners.platformURLs", err)

	_, err = bounds.NewEgressPolicy(nil, cfg.Runners.PlatformNetworks)
	addError("runners.platformNetworks", err)

	return errors.Join(errs...)
}

// validateShard checks the settings of one of several operators. An area other than runners cannot be divided: its
// addresses or hosts are shared by all namespaces.
func validateShard(cfg v1alpha1.OperatorConfig) error {
	var errs []error

	rejectIf := func(isInvalid bool, key, text string) {
		if isInvalid {
			errs = append(errs, strictyaml.ErrorAt(key, "%s", text))
		}
	}

	for _, namespace := range cfg.Namespaces {
		rejectIf(len(validation.IsDNS1123Label(namespace)) > 0, "namespaces",
			fmt.Sprintf("%q is not the name of a namespace", namespace))
	}

	isDivided := len(cfg.Namespaces) > 0
	rejectIf(isDivided && !slices.Equal(cfg.Controllers, []string{v1alpha1.AreaRunners}), "namespaces",
		"only the area runners can be divided: set controllers to [runners], and run the other areas in an operator without namespaces")
	rejectIf(isDivided && len(validation.IsDNS1123Label(cfg.Shard.Name)) > 0, "shard.name",
		"an operator with namespaces needs a name of its own, with lower case letters, digits and -")
	rejectIf(!isDivided && cfg.Shard.Name != "", "shard.name", "it needs namespaces")
	rejectIf(cfg.Shard.Operators < 1, "shard.operators", "it must be at least 1")

	return errors.Join(errs...)
}

var errGuestURL = errors.New("it must be an https URL such as https://hyperfleet.example.com:8443, " +
	"without a path, because machines send a token to it (http is valid only for loopback)")

// validateGuestURL checks the URL to which machines send their reports. It must be https, because machines
// refuse to send their token over plain HTTP, except to a loopback address. An empty URL is valid.
func validateGuestURL(text string) error {
	if text == "" {
		return nil
	}

	u, err := url.Parse(text)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errGuestURL
	}

	addr, _ := netip.ParseAddr(u.Hostname())
	if u.Scheme == "https" || (u.Scheme == "http" && (addr.IsLoopback() || u.Hostname() == "localhost")) {
		return nil
	}

	return errGuestURL
}

func validateIntervals(cfg v1alpha1.OperatorConfig) error {
	var errs []error

	for key, value := range map[string]int64{
		"runners.clusterInterval":  int64(cfg.Runners.ClusterInterval),
		"runners.templateInterval": int64(cfg.Runners.TemplateInterval),
		"runners.orphanInterval":   int64(cfg.Runners.OrphanInterval),
		"runners.taskInterval":     int64(cfg.Runners.TaskInterval),
		"runners.listInterval":     int64(cfg.Runners.ListInterval),
		"runners.jobRetention":     int64(cfg.Runners.JobRetention),
		"runners.jobSilence":       int64(cfg.Runners.JobSilence),
	} {
		if value <= 0 {
			errs = append(errs, strictyaml.ErrorAt(key, "it must be a positive duration such as 30s"))
		}
	}

	return errors.Join(errs...)
}

// newLogger returns a logger that writes to standard error, as in all programs of this repository.
func newLogger(cfg v1alpha1.Log) (*slog.Logger, error) {
	level, err := log.ParseLevel(cfg.Level)
	if err != nil {
		return nil, fmt.Errorf("set up logging: %w", err)
	}

	format, err := log.ParseFormat(cfg.Format)
	if err != nil {
		return nil, fmt.Errorf("set up logging: %w", err)
	}

	return log.New(os.Stderr, log.Options{Level: level, Format: format}), nil
}

func loadKubeConfig(file string) (*rest.Config, error) {
	if file != "" {
		return credential.LoadKubeconfig(file)
	}

	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: use --kubeconfig, or run the operator in a pod: %w", err)
	}

	credential.RetryUnreadyAdmission(cfg)

	return cfg, nil
}
