// Command zvolt-sanity runs the checks of csi-test against a CSI driver and tells of each in a line of
// JSON, for tier `sanity` of `cargo lab test`.
package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/formatter"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"github.com/onsi/gomega/format"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// What differs between the variants: fields of sanity.TestConfig.
//
//go:embed variants/*.json
var variants embed.FS

type options struct {
	list     bool
	endpoint string
	staging  string
	target   string
	filter   string
	seed     int64
	deadline time.Duration
}

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "zvolt-sanity:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	var o options
	flags := flag.NewFlagSet("zvolt-sanity", flag.ContinueOnError)
	flags.BoolVar(&o.list, "list", false, "name the checks of every variant; run none")
	flags.StringVar(&o.endpoint, "endpoint", "unix:///run/zvolt/csi.sock", "the driver's socket")
	flags.StringVar(&o.staging, "staging", "", "staging path; its parent must exist, it must not")
	flags.StringVar(&o.target, "target", "", "parent of the target path; its own parent must exist, it must not")
	flags.StringVar(&o.filter, "filter", "", "run only checks that have this in their name")
	flags.Int64Var(&o.seed, "seed", 1, "decides the order of the groups of checks")
	flags.DurationVar(&o.deadline, "deadline", 2*time.Minute, "deadline of each call")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	// Standard output is for lines of JSON; csi-test's own report says the same to a person.
	formatter.ColorableStdOut = io.Discard
	klog.SetOutput(ginkgo.GinkgoWriter)
	if o.list {
		return list()
	}
	if flags.NArg() != 1 || o.staging == "" || o.target == "" {
		return errors.New("usage: zvolt-sanity -staging PATH -target PATH [OPTION…] VARIANT")
	}
	return check(flags.Arg(0), o)
}

// list prints the name of every check: the variant and csi-test's own text.
func list() error {
	entries, err := variants.ReadDir("variants")
	if err != nil {
		return err
	}
	config := sanity.NewTestConfig()
	sanity.GinkgoTest(&config)
	report := ginkgo.PreviewSpecs("zvolt-sanity")
	for _, entry := range entries {
		variant := strings.TrimSuffix(entry.Name(), ".json")
		for _, spec := range report.SpecReports.WithLeafNodeType(types.NodeTypeIt) {
			fmt.Println(variant, spec.FullText())
		}
	}
	return nil
}

// check runs the checks of one variant. That some fail is no error: their lines say so.
func check(variant string, o options) error {
	config := sanity.NewTestConfig()
	if err := load(variant, &config); err != nil {
		return err
	}
	calls := &calls{deadline: o.deadline}
	config.Address, config.StagingPath, config.TargetPath = o.endpoint, o.staging, o.target
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(calls.intercept))

	gomega.RegisterFailHandler(ginkgo.Fail)
	format.RegisterCustomFormatter(call)
	context := sanity.GinkgoTest(&config)
	teller := teller{variant, o.filter, json.NewEncoder(os.Stdout), calls}
	ginkgo.ReportBeforeEach(teller.begin)
	ginkgo.ReportAfterEach(teller.end)
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomSeed = o.seed
	if o.filter != "" {
		suite.FocusStrings = []string{quote(o.filter)}
	}
	// The variant is the suite's name, so the filter is held against it and the check's text.
	ginkgo.RunSpecs(&outcome{}, variant, suite, reporter)
	context.Finalize()
	return teller.out.Encode(line{Event: "done"})
}

func load(variant string, config *sanity.TestConfig) error {
	text, err := variants.ReadFile(path.Join("variants", variant+".json"))
	if err != nil {
		return fmt.Errorf("no variant %q: %w", variant, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(config); err != nil {
		return fmt.Errorf("variant %q: %w", variant, err)
	}
	return nil
}

// outcome is what a suite tells its end to; the lines have told it already.
type outcome struct{}

func (*outcome) Fail() {}
