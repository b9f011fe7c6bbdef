package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// mysqldEnv names the environment variable with the path of a mysqld program of MySQL 8.0.30 or
// later. If it is set, StartMariaDB starts that program instead of mariadbd. `make test-mysql` sets
// it for the tests of the MySQL driver.
const mysqldEnv = "LOCKSIDECAR_TEST_MYSQLD"

// IsMySQL reports whether StartMariaDB starts MySQL instead of MariaDB.
func IsMySQL() bool { return os.Getenv(mysqldEnv) != "" }

// mysqldArgs returns the arguments of mysqld, which are also used for the creation of its files.
func mysqldArgs(data string) []string {
	args := []string{"--no-defaults", "--datadir=" + data, "--innodb-redo-log-capacity=16M",
		"--innodb-buffer-pool-size=24M",
		"--key-buffer-size=1M",
		"--performance-schema=0", "--mysqlx=0", "--skip-log-bin", "--secure-file-priv=",
		"--auto-generate-certs=0"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

// mysqlImage makes the files of a fresh MySQL.
func mysqlImage(dir string) (image, error) {
	data := filepath.Join(dir, "data")
	out, err := exec.Command(os.Getenv(mysqldEnv),
		append(mysqldArgs(data), "--initialize-insecure")...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("mysqld --initialize-insecure: %w\n%s", err, out)
	}
	return packImage(data)
}
